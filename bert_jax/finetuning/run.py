"""Open a fine-tuning run: its model, examples, compiled steps and batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jax
from jax.sharding import Mesh

from bert_jax.finetuning.compiled_steps import (
    CompiledSteps,
    check_batches,
    check_data,
    check_memory,
    make_steps,
)
from bert_jax.finetuning.config import FinetuneConfig, Monitoring
from bert_jax.finetuning.hyperparameters import Hyperparameters
from bert_jax.finetuning.outcome import describe_model
from bert_jax.finetuning.registry import loss_of
from bert_jax.finetuning.scoring import LOSS, Scorer, row_lengths
from bert_jax.finetuning.source import (
    Source,
    encoder_of,
    open_source,
    source_identity,
    state_from_source,
)
from bert_jax.finetuning.task_data import TaskData
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.labeled_data.feature_batches import ByLength
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.ownership import ResolvedConfig
from bert_jax.runs.runtime import dtype_hint
from bert_jax.runs.work_dir import Comparison
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.optimizer import OptimizerConfig
from bert_jax.training.phase import Intervals
from bert_jax.training.rollback import Recovery
from bert_jax.training.state import TrainState, abstract_state, parameter_key


@dataclass(frozen=True)
class FinetuneRun:
    """An open run: its files have been read, and its config has been checked against them.

    Attributes:
      place: the directory that the run writes to.
      hyperparameters: the hyperparameters that a sweep may vary.
      source: the model that the run starts from.
      task: the config section of the task.
      data: the task's examples.
      max_length: the maximum number of tokens per sequence.
      mesh: the device mesh.
      row_lengths: the lengths that rows are padded to. Each length has its own compiled program.
      compiled: the compiled steps, with the settings that they depend on.
      rows_evaluated: the maximum number of examples per evaluation batch.
      monitoring: the settings for evaluations and progress reports.
      hints: suggestions for faster settings.
      resolved: the config's values, which are written to `config.json`.
    """

    place: WorkDir
    hyperparameters: Hyperparameters
    source: Source
    task: TaskConfig
    data: TaskData
    max_length: int
    mesh: Mesh
    row_lengths: tuple[int, ...]
    compiled: CompiledSteps
    rows_evaluated: int
    monitoring: Monitoring
    hints: tuple[str, ...]
    resolved: ResolvedConfig

    @property
    def work_dir(self) -> Path:
        """The local directory in which the run works."""
        return self.place.path

    @classmethod
    def open(
        cls,
        config: FinetuneConfig,
        mesh: Mesh,
        others: Sequence[FinetuneRun] = (),
        source: Source | None = None,
        place: WorkDir | None = None,
    ) -> FinetuneRun:
        """Read the model and the task's files, and check that they fit the config.

        Args:
          config: the run's config.
          mesh: the device mesh.
          others: other open runs. Their model, data and compiled steps are reused if this run needs
            the same ones.
          source: the model to start from; None for the one in the config's `init_from`.
          place: the opened work directory; None to open the config's `work_dir` on a local disk.

        Raises:
          ValueError: the model or a file does not fit the config, or a file is missing or damaged.
        """
        config = config.with_columns()
        check_batches(config.batch_size, config.rows_evaluated, config.accumulation_steps, mesh)
        place = place or WorkDir.on_disk(config.work_dir)
        source = (
            source
            or _shared_source(config.init_from, mesh, others, from_scratch=config.from_scratch)
            or open_source(config.init_from, place.path, mesh, from_scratch=config.from_scratch)
        )
        encoder = encoder_of(source, config.max_length, config.dropout)
        data = _shared_data(
            config.task, config.max_length, source.tokenizer, others
        ) or config.open(source.tokenizer, ("train", "validation", "test"))
        check_data(data, source.tokenizer, config.best_metric, allow_unknown=config.allow_unknown)
        model = data.head.on(encoder, config.head_dropout)
        compute = config.compute.resolve(jax.devices()[0], encoder, config.max_length)
        loss = loss_of(config.task, model, compute)
        assert data.train is not None
        run = cls(
            place=place,
            hyperparameters=config.hyperparameters,
            source=source,
            task=config.task,
            data=data,
            max_length=config.max_length,
            mesh=mesh,
            row_lengths=row_lengths(data.train, config.max_shapes, encoder.max_positions),
            compiled=make_steps(
                config.optimizer,
                config.tuning,
                config.accumulation_steps,
                loss,
                mesh,
                [other.compiled for other in others],
                config.divergence,
            ),
            rows_evaluated=config.rows_evaluated,
            monitoring=config.monitoring,
            hints=tuple(dtype_hint(config.compute, mesh.devices.flat[0].platform)),
            resolved=ResolvedConfig.of(config),
        )
        run.check_memory()
        return run

    def with_hyperparameters(self, place: WorkDir, hyperparameters: Hyperparameters) -> FinetuneRun:
        """Return a run with different hyperparameters that shares this run's data and programs.

        Args:
          place: the directory that the new run writes to.
          hyperparameters: the hyperparameters.

        Raises:
          ValueError: the batch cannot be split over the devices.
        """
        check_batches(
            hyperparameters.batch_size,
            self.rows_evaluated,
            self.compiled.accumulation_steps,
            self.mesh,
        )
        resolved = self.resolved.with_values(
            {
                "work_dir": str(place.location),
                "seed": hyperparameters.seed,
                "batch_size": hyperparameters.batch_size,
                "num_epochs": hyperparameters.num_epochs,
                "optimizer": {"peak_learning_rate": hyperparameters.learning_rate},
            }
        )
        return dataclasses.replace(
            self, place=place, hyperparameters=hyperparameters, resolved=resolved
        )

    def with_source(self, source: Source) -> FinetuneRun:
        """Return a run that starts from another checkpoint of the same pretraining run.

        Both runs share their compiled programs, unless the rotary angles changed during
        pretraining.
        """
        model, theta = self.model, source.model.encoder.rotary_theta
        encoder = dataclasses.replace(model.encoder, rotary_theta=theta)
        if encoder == model.encoder:
            return dataclasses.replace(self, source=source)
        loss = loss_of(self.task, dataclasses.replace(model, encoder=encoder), self.compute)
        compiled = make_steps(
            self.compiled.optimizer_config,
            self.compiled.tuning.config,
            self.compiled.accumulation_steps,
            loss,
            self.mesh,
            divergence=self.compiled.divergence,
        )
        return dataclasses.replace(self, source=source, compiled=compiled)

    def check_memory(self) -> None:
        """Check that the run fits in this machine's memory.

        Raises:
          ValueError: the run does not fit in memory.
        """
        assert self.data.train is not None
        check_memory(
            self.model,
            self.compute,
            self.compiled.tuning,
            self.mesh,
            self.data.train,
            longest=self.row_lengths[-1],
            batch_size=self.hyperparameters.batch_size,
            accumulation_steps=self.compiled.accumulation_steps,
            optimizer=self.optimizer,
            init_from=self.source.init_from,
            max_length=self.max_length,
        )

    @property
    def model(self) -> ModelConfig:
        """The model that the run fine-tunes."""
        return self.compiled.task.config

    @property
    def compute(self) -> ComputeConfig:
        """The compute settings, with "auto" resolved."""
        return self.compiled.task.compute

    @property
    def optimizer(self) -> OptimizerConfig:
        """The optimizer's settings, with the run's peak learning rate."""
        rate = self.hyperparameters.learning_rate
        return dataclasses.replace(self.compiled.optimizer_config, peak_learning_rate=rate)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model that the run starts from."""
        return self.source.tokenizer

    @cached_property
    def plan(self) -> ByLength:
        """The plan that assigns training examples to batches."""
        assert self.data.train is not None
        batch_size, seed = self.hyperparameters.batch_size, self.hyperparameters.seed
        return ByLength(self.data.train.lengths, self.row_lengths, batch_size, seed)

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer, which runs the model on whole sets."""
        return Scorer(
            self.mesh,
            self.compiled.task,
            self.compiled.prediction_step,
            self.compiled.metrics_step,
            self.rows_evaluated,
            self.row_lengths,
        )

    @property
    def total_steps(self) -> int:
        """The total number of steps over all epochs."""
        return self.hyperparameters.num_epochs * self.plan.steps_per_epoch

    @property
    def intervals(self) -> Intervals:
        """The intervals at which the run reports progress, evaluates and saves."""
        return self.monitoring.intervals(self.hyperparameters.num_epochs, self.plan.steps_per_epoch)

    @property
    def best_metric(self) -> str:
        """The validation metric that checkpoints are compared by."""
        return self.monitoring.best_metric or self.data.best_metric

    @property
    def compared_by(self) -> Comparison:
        """The metric that checkpoints are compared by, and whether lower is better."""
        return Comparison(self.best_metric, self.best_metric.endswith(LOSS))

    def identity(self) -> dict[str, object]:
        """Return the values that a checkpoint must match for this run to resume from it."""
        assert self.data.train is not None
        return {
            "model": {**dataclasses.asdict(self.model), "encoder": self.model.encoder.identity},
            "optimizer": self.optimizer.identity(),
            "tuning": dataclasses.asdict(self.compiled.tuning.config),
            "seed": self.hyperparameters.seed,
            "init_from": source_identity(self.source, self.work_dir),
            "from_scratch": self.source.from_scratch,
            "batch_size": self.hyperparameters.batch_size,
            "best_metric": self.best_metric,
            "row_lengths": list(self.row_lengths),
            # These keys appear in the error message about changed files. Their values serve only
            # for comparison.
            "training examples (their file, its columns, max_length)": self.data.train.fingerprint,
            "validation examples (likewise)": {
                name: examples.fingerprint for name, examples in self.data.validation.items()
            },
            "tokenizer": self.tokenizer.fingerprint,
        }

    def first_state(self, checkpointer: Checkpointer) -> tuple[TrainState, str]:
        """Return the state to start from, and a description of its origin.

        The state is restored from this run's newest checkpoint, if there is one. Otherwise, it is
        randomly initialized. Unless the run trains from scratch, the parameters from `init_from`
        then replace the random ones.
        """
        step = checkpointer.latest_step()
        if step is not None:
            return self._saved_state(checkpointer, step)
        return self._initial_state()

    def recovery(self, checkpointer: Checkpointer) -> Recovery | None:
        """Return the `Recovery` that restores a checkpoint if the run diverges.

        The result is None if the config does not enable the checks for divergence.
        """
        config = self.compiled.divergence
        if not config.enabled:
            return None
        return Recovery(
            config, checkpointer, self._abstract_state(), lambda: self._initial_state()[0]
        )

    def _initial_state(self) -> tuple[TrainState, str]:
        seed = self.hyperparameters.seed
        state = self.compiled.init(parameter_key(seed))
        if self.source.from_scratch:
            return state, f"random parameters (seed {seed})"
        return state_from_source(self.source, state, self.model)

    def _saved_state(self, checkpointer: Checkpointer, step: int) -> tuple[TrainState, str]:
        # Check this first, since the step of another run's checkpoint means nothing for this run.
        checkpointer.check_identity()
        if step > self.total_steps:
            epochs = self.hyperparameters.num_epochs
            raise ValueError(
                f"num_epochs={epochs}: amounts to {self.total_steps:,} steps, but {self.work_dir} "
                f"was trained for {step:,}. Set num_epochs to at least its previous value, or use "
                "another work_dir."
            )
        origin = f"this run's checkpoint at step {step:,}"
        return checkpointer.restore(self._abstract_state()), origin

    def _abstract_state(self) -> TrainState:
        return abstract_state(
            self.compiled.task.definition,
            self.compiled.optimizer,
            self.mesh,
            self.compiled.tuning.is_trainable,
        )

    def write_model(self, best_step: int | None) -> None:
        """Write the run's `model.json`; `best_step` is None before the end of the run."""
        origin = "sizes and tokenizer of" if self.source.from_scratch else "source"
        describe_model(
            self.work_dir,
            {"command": "bert-jax finetune", origin: self.source.init_from},
            self.model,
            self.tokenizer,
            self.compared_by,
            self.task.inference_defaults(self.max_length, self.data),
            best_step,
        )


def _shared_source(
    init_from: str, mesh: Mesh, others: Sequence[FinetuneRun], *, from_scratch: bool
) -> Source | None:
    """Return the source of another run that starts from the same model, if there is one."""
    for each in (other.source for other in others):
        if (each.init_from, each.from_scratch, each.mesh) == (init_from, from_scratch, mesh):
            return each
    return None


def _shared_data(
    task: TaskConfig, max_length: int, tokenizer: Tokenizer, others: Sequence[FinetuneRun]
) -> TaskData | None:
    """Return the data of another run that reads the same examples, if there is one."""
    reading = task, max_length, tokenizer.fingerprint
    for other in others:
        if (other.task, other.max_length, other.tokenizer.fingerprint) == reading:
            return other.data
    return None
