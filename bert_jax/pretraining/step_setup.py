"""Define the settings of a pretraining step, and compute its cost in FLOPs and memory."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import optax
from jax.sharding import Mesh

from bert_jax.analysis.counts import own_generator_parameters, parameter_counts
from bert_jax.analysis.flops import (
    TRAINING_FACTOR,
    layer_flops,
    pretraining_flops,
    replaced_token_flops,
)
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.devices import Device
from bert_jax.models.model import ModelConfig, PretrainingHead
from bert_jax.models.replaced_token import generator_of
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.teacher import LoadedTeacher, TeacherSpec, describe_teacher
from bert_jax.tasks.distillation import Distillation, DistillationConfig
from bert_jax.tasks.matched_layers import compared_windows
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.replaced_token import ReplacedToken, ReplacedTokenConfig
from bert_jax.tasks.task import Task
from bert_jax.training.averaging import AveragingConfig, averaged
from bert_jax.training.diagnosis import Diagnose, make_diagnosis
from bert_jax.training.divergence import DivergenceConfig, guarded
from bert_jax.training.memory import (
    PRETRAINING_ARRAYS,
    Part,
    batch_part,
    check_fits,
    check_traceable,
    model_size_keys,
    state_parts,
)
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.step import EvaluationStep, TrainStep, make_evaluation_step, make_train_step


@dataclass(frozen=True)
class StepSetup:
    """The train-step settings for one kind of device, without corpora or parameters.

    Attributes:
      model: the encoder.
      sentence_pairs: the kind of segment pairs to train on.
      masking: how tokens are masked.
      requested_compute: the compute settings as specified in the config.
      compute: the same settings with every "auto" resolved.
      optimizer: the optimizer.
      accumulation_steps: the number of parts that each batch is split into.
      distillation: the distillation losses; None for a run without a teacher.
      replaced_token: the settings of a run that detects replaced tokens; None for other runs.
      averaging: the average of the parameters.
      divergence: which steps to skip.
      teacher: the description of the teacher; None until `with_teacher` has added it, and always
        None for a run without a teacher.
    """

    model: EncoderConfig
    sentence_pairs: SentencePairs
    masking: MaskingConfig
    requested_compute: ComputeConfig
    compute: ComputeConfig
    optimizer: OptimizerConfig
    accumulation_steps: int
    distillation: DistillationConfig | None
    replaced_token: ReplacedTokenConfig | None = None
    averaging: AveragingConfig = AveragingConfig()
    divergence: DivergenceConfig = DivergenceConfig()
    teacher: TeacherSpec | None = None

    def for_phase(self, phase: PhaseConfig) -> StepSetup:
        """Return the setup with a phase's encoder, or this setup if it already has that encoder."""
        encoder = phase.encoder(self.model)
        return self if encoder == self.model else dataclasses.replace(self, model=encoder)

    def with_teacher(
        self, device: Device, longest_sequence: int, step: int | None = None
    ) -> StepSetup:
        """Return the setup with the teacher's description, or unchanged if there is no teacher.

        Args:
          device: the device that the teacher runs on.
          longest_sequence: the longest sequence length of any phase.
          step: the step of the teacher's checkpoint; None for the best or newest one.

        Raises:
          ValueError: see `describe_teacher`.
        """
        if self.distillation is None:
            return self
        teacher = describe_teacher(
            self.distillation, self.model, self.requested_compute, device, longest_sequence, step
        )
        return dataclasses.replace(self, teacher=teacher)

    @property
    def model_config(self) -> ModelConfig:
        """The encoder with the heads that the run trains."""
        head: PretrainingHead = "masked_lm" if self.sentence_pairs == "none" else "pretraining"
        if self.replaced_token is not None:
            head = "replaced_token"
        return ModelConfig(self.model, head)

    @property
    def generator(self) -> EncoderConfig | None:
        """The generator's encoder, in a run that detects replaced tokens; otherwise None."""
        if self.replaced_token is None:
            return None
        return generator_of(self.model, self.replaced_token.generator_size)

    @cached_property
    def task(self) -> Pretraining | ReplacedToken:
        """The pretraining task, without distillation losses."""
        if self.replaced_token is not None:
            return ReplacedToken(self.model, self.compute, self.replaced_token)
        return self._masked_lm

    @cached_property
    def _masked_lm(self) -> Pretraining:
        dim = None if self.teacher is None else self.teacher.model.encoder.hidden_dim
        maps = self.distillation is not None and self.distillation.hidden_weight > 0
        return Pretraining(
            self.model,
            self.compute,
            sentence_pairs=self.sentence_pairs,
            teacher_dim=dim if maps and dim != self.model.hidden_dim else None,
        )

    @cached_property
    def trained_task(self) -> Task:
        """The task that the run trains on, with the distillation losses if there is a teacher."""
        if self.teacher is None:
            return self.task
        config, teacher = self.teacher.config, self.teacher.model.encoder
        windows = compared_windows(self.model, teacher) if config.attention_weight else ()
        return Distillation(self._masked_lm, config, windows)

    @cached_property
    def transformation(self) -> optax.GradientTransformation:
        """The optimizer as an optax gradient transformation."""
        return guarded(averaged(make_optimizer(self.optimizer), self.averaging), self.divergence)

    def steps(self, mesh: Mesh, teacher: LoadedTeacher | None) -> tuple[TrainStep, EvaluationStep]:
        """Return the train and evaluation steps, with the teacher's parameters bound to them."""
        task, optimizer, parts = self.trained_task, self.transformation, self.accumulation_steps
        if teacher is None:
            step = make_train_step(task, optimizer, mesh, accumulation_steps=parts)
            return step, make_evaluation_step(task, mesh)
        model, params = teacher.spec.teacher, teacher.params
        train = make_train_step(task, optimizer, mesh, accumulation_steps=parts, teacher=model)
        evaluate = make_evaluation_step(task, mesh, teacher=model)
        return (
            lambda state, batch, inputs: train(state, batch, inputs._replace(teacher=params)),
            lambda student, batch: evaluate(student, batch, params),
        )

    def diagnosis(self, mesh: Mesh, teacher: LoadedTeacher | None) -> Diagnose | None:
        """Return a function that finds non-finite values, or None if no steps are checked."""
        if not self.divergence.enabled:
            return None
        task, parts = self.trained_task, self.accumulation_steps
        if teacher is None:
            return make_diagnosis(task, mesh, accumulation_steps=parts)
        model, of_teacher = teacher.spec.teacher, teacher.params
        diagnose = make_diagnosis(task, mesh, accumulation_steps=parts, teacher=model)
        return lambda params, batch, step, inputs: diagnose(
            params, batch, step, inputs._replace(teacher=of_teacher)
        )

    def max_predictions(self, phase: PhaseConfig) -> int:
        """Return the maximum number of masked positions in a sequence of `phase`."""
        return self.masking.max_predictions(phase.sequence_length)

    def training_flops(self, phase: PhaseConfig, documents_per_row: int) -> int:
        """Return the model FLOPs per step of `phase`, without the teacher's forward pass.

        Args:
          phase: the phase's config.
          documents_per_row: the maximum number of documents in a row.
        """
        length, predictions = phase.sequence_length, self.max_predictions(phase)
        if self.generator is not None:
            flops = replaced_token_flops(self.model, self.generator, length, predictions)
            return TRAINING_FACTOR * phase.batch_size * flops
        whole = pretraining_flops(
            self.model,
            length,
            predictions,
            documents_per_row=documents_per_row,
            next_sentence=self.sentence_pairs != "none",
        )
        return phase.batch_size * whole.training + self._comparison_flops(phase)

    def distillation_flops(self, phase: PhaseConfig) -> int:
        """Return the model FLOPs that the teacher adds to each step of `phase`."""
        if self.teacher is None:
            return 0
        return self.teacher_flops(phase) + self._comparison_flops(phase)

    def step_flops(self, phase: PhaseConfig, documents_per_row: int) -> int:
        """Return the model FLOPs per step of `phase`, including the teacher's forward pass."""
        return self.training_flops(phase, documents_per_row) + self.teacher_flops(phase)

    def fp8_flops(self, phase: PhaseConfig) -> int:
        """Return the part of `step_flops` that FP8 units compute, at twice the peak in bfloat16."""
        match self.compute.products:
            case "dtype" | "fp8_emulated":
                return 0
            case "fp8":
                pass
            case _:
                assert_never(self.compute.products)
        models = [self.model] if self.generator is None else [self.model, self.generator]
        layers = [
            layer_flops(model, phase.sequence_length, layer).dense
            for model in models
            for layer in range(model.num_layers)
        ]
        return TRAINING_FACTOR * phase.batch_size * sum(layers)

    def teacher_flops(self, phase: PhaseConfig) -> int:
        """Return the FLOPs of the teacher's forward pass in each step of `phase`."""
        if self.teacher is None:
            return 0
        everywhere = self.teacher.config.soft_targets == "all"
        flops = pretraining_flops(
            self.teacher.model.encoder,
            phase.sequence_length,
            phase.sequence_length if everywhere else self.max_predictions(phase),
            next_sentence=False,
        )
        return phase.batch_size * flops.forward

    def _comparison_flops(self, phase: PhaseConfig) -> int:
        """Return the FLOPs needed to train the masked-LM head on all tokens.

        The result is 0 unless `soft_targets` is "all".
        """
        if self.distillation is None or self.distillation.soft_targets != "all":
            return 0
        length = phase.sequence_length
        head = pretraining_flops(self.model, length, length, next_sentence=False).masked_lm
        return TRAINING_FACTOR * phase.batch_size * head

    def memory_parts(self, mesh: Mesh, name: str, phase: PhaseConfig) -> list[Part]:
        """Return the minimum memory per device for each part of a phase's train step.

        Args:
          mesh: the device mesh.
          name: the phase's name, for the config keys in messages.
          phase: the phase's config.
        """
        parameters = parameter_counts(self.model_config).total
        if self.generator is not None:
            parameters += own_generator_parameters(self.generator)
        clips = self.optimizer.clips_gradients or self.accumulation_steps > 1
        state = state_parts(
            mesh,
            parameters,
            parameters,
            moments=self.optimizer.optimizer.moments + (self.averaging.ema_decay > 0),
            all_gradients=clips,
            keys=model_size_keys(self.model),
        )
        batch = batch_part(
            mesh,
            self.model,
            self.compute,
            name="one batch",
            rows=phase.batch_size,
            rows_at_once=phase.batch_size // self.accumulation_steps,
            length=phase.sequence_length,
            arrays=PRETRAINING_ARRAYS,
            keys=f"phases.{name}.batch_size={phase.batch_size} or sequence_length="
            f"{phase.sequence_length}, or raise accumulation_steps={self.accumulation_steps}",
        )
        return [*state, batch]

    def check_memory(self, mesh: Mesh, name: str, phase: PhaseConfig) -> list[Part]:
        """Check that a phase's train step fits in memory, and return the memory of each part.

        Args:
          mesh: the device mesh.
          name: the phase's name, for the config keys in messages.
          phase: the phase's config.

        Raises:
          ValueError: the step does not fit; the message names the largest part and its config keys.
        """
        parts = self.memory_parts(mesh, name, phase)
        check_traceable(parts, mesh)
        check_fits(parts, mesh)
        return parts
