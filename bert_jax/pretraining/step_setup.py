"""Describe a pretraining step: its model, losses, optimizer and teacher, and its FLOPs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property

import optax
from jax.sharding import Mesh

from bert_jax.analysis.counts import TRAINING_FACTOR, pretraining_flops
from bert_jax.models.config import ComputeConfig, Device, EncoderConfig
from bert_jax.models.model import Head, ModelConfig
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.masking import MaskingConfig
from bert_jax.pretraining.sections import PhaseConfig
from bert_jax.pretraining.teacher import LoadedTeacher, TeacherSpec, describe_teacher
from bert_jax.tasks.distillation import Distillation, DistillationConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Task
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.step import (
    EvaluationStep,
    TrainStep,
    make_evaluation_step,
    make_train_step,
)


@dataclass(frozen=True)
class StepSetup:
    """The settings of the train step on one kind of device, without corpora and parameters.

    requested_compute: as in the config. compute: the same, with every "auto" resolved.
    teacher: None until `with_teacher`, and for a run without one.
    """

    model: EncoderConfig
    sentence_pairs: SentencePairs
    masking: MaskingConfig
    requested_compute: ComputeConfig
    compute: ComputeConfig
    optimizer: OptimizerConfig
    accumulation_steps: int
    distillation: DistillationConfig | None
    teacher: TeacherSpec | None = None

    def with_teacher(self, device: Device, longest_sequence: int) -> StepSetup:
        """Return the setup with its teacher's description; unchanged if the run has no teacher.

        Raises:
          ValueError: see `describe_teacher`.
        """
        if self.distillation is None:
            return self
        teacher = describe_teacher(
            self.distillation, self.model, self.requested_compute, device, longest_sequence
        )
        return dataclasses.replace(self, teacher=teacher)

    @property
    def model_config(self) -> ModelConfig:
        """The encoder with the heads that the run trains."""
        head: Head = "masked_lm" if self.sentence_pairs == "none" else "pretraining"
        return ModelConfig(self.model, head)

    @cached_property
    def task(self) -> Pretraining:
        """The task that the run is evaluated on."""
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
        """The task that is trained: with a teacher it has further losses."""
        return self.task if self.teacher is None else Distillation(self.task, self.teacher.config)

    @cached_property
    def transformation(self) -> optax.GradientTransformation:
        """The optimizer."""
        return make_optimizer(self.optimizer)

    def steps(self, mesh: Mesh, teacher: LoadedTeacher | None) -> tuple[TrainStep, EvaluationStep]:
        """Return the train and evaluation steps, which pass the teacher's parameters on."""
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

    def max_predictions(self, phase: PhaseConfig) -> int:
        """Return the largest number of predicted positions in a sequence of `phase`."""
        return self.masking.max_predictions(phase.sequence_length)

    def training_flops(self, phase: PhaseConfig, pieces: int) -> int:
        """Return the model FLOPs of a step of `phase` without its teacher's forward pass.

        pieces: the largest number of documents in a row.
        """
        counted = pretraining_flops(
            self.model,
            phase.sequence_length,
            self.max_predictions(phase),
            pieces=pieces,
            next_sentence=self.sentence_pairs != "none",
        )
        return phase.batch_size * counted.training + self._comparison_flops(phase)

    def distillation_flops(self, phase: PhaseConfig) -> int:
        """Return the model FLOPs that the teacher adds to a step of `phase`."""
        if self.teacher is None:
            return 0
        return self.teacher_flops(phase) + self._comparison_flops(phase)

    def step_flops(self, phase: PhaseConfig, pieces: int) -> int:
        """Return the model FLOPs of a step of `phase` with its teacher's forward pass."""
        return self.training_flops(phase, pieces) + self.teacher_flops(phase)

    def teacher_flops(self, phase: PhaseConfig) -> int:
        """Return the FLOPs of the teacher's forward pass in a step of `phase`."""
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
        """Return the FLOPs of training the masked-LM head at all tokens, if all are compared."""
        if self.distillation is None or self.distillation.soft_targets != "all":
            return 0
        length = phase.sequence_length
        head = pretraining_flops(self.model, length, length, next_sentence=False).masked_lm
        return TRAINING_FACTOR * phase.batch_size * head
