"""An opened fine-tuning run: its model, examples, programs and batches."""

from __future__ import annotations

import dataclasses
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
    unknown_lines,
)
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import describe_model
from bert_jax.finetuning.registry import loss_of
from bert_jax.finetuning.scoring import LOSS, Scorer, padding, row_lengths
from bert_jax.finetuning.source import (
    Source,
    encoder_of,
    open_source,
    source_identity,
    state_from_source,
)
from bert_jax.finetuning.task_data import TaskData
from bert_jax.labeled_data.features import ByLength
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import count
from bert_jax.runs.runtime import dtype_hint
from bert_jax.runs.work_dir import Comparison
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.loop import Intervals
from bert_jax.training.state import TrainState, abstract_state, parameter_key, trainable_part


@dataclass(frozen=True)
class FinetuneRun:
    """A run whose files have been read and whose config has been checked against them.

    row_lengths: lengths that rows are padded to; each has a compiled program.
    """

    config: FinetuneConfig
    mesh: Mesh
    source: Source
    data: TaskData
    model: ModelConfig
    compute: ComputeConfig
    row_lengths: tuple[int, ...]
    compiled: CompiledSteps

    @classmethod
    def open(cls, config: FinetuneConfig, mesh: Mesh) -> FinetuneRun:
        """Read the model and the task's files, and check that they fit.

        Raises:
          ValueError: they do not fit, or a file is missing or damaged.
        """
        check_batches(config.batch_size, config.rows_evaluated, config.accumulation_steps, mesh)
        source = open_source(
            Path(config.init_from), Path(config.work_dir), mesh, from_scratch=config.from_scratch
        )
        encoder = encoder_of(source, config.init_from, config.max_length, config.dropout)
        data = config.open(source.tokenizer, ("train", "validation", "test"))
        check_data(data, source.tokenizer, config.best_metric, allow_unknown=config.allow_unknown)
        model = data.head.on(encoder, config.head_dropout)
        compute = config.compute.resolve(jax.devices()[0], encoder)
        assert data.train is not None
        lengths = row_lengths(data.train, config.max_shapes, encoder.max_positions)
        task = loss_of(config.task, model, compute)
        compiled = make_steps(
            config.optimizer, config.tuning, config.accumulation_steps, task, mesh
        )
        run = cls(config, mesh, source, data, model, compute, lengths, compiled)
        run.check_memory()
        return run

    def turned(
        self, work_dir: str, *, seed: int, batch_size: int, learning_rate: float, num_epochs: int
    ) -> FinetuneRun:
        """Return this run with other hyperparameters, sharing its data and compiled programs.

        Raises:
          ValueError: the batch cannot be split over the devices.
        """
        optimizer = dataclasses.replace(self.config.optimizer, peak_learning_rate=learning_rate)
        config = dataclasses.replace(self.config, work_dir=work_dir, optimizer=optimizer, seed=seed)
        config = dataclasses.replace(config, batch_size=batch_size, num_epochs=num_epochs)
        check_batches(batch_size, config.rows_evaluated, config.accumulation_steps, self.mesh)
        return dataclasses.replace(self, config=config)

    def check_memory(self) -> None:
        """Refuse a run that does not fit into this machine's memory.

        Raises:
          ValueError: see `check_pretraining`.
        """
        config = self.config
        assert self.data.train is not None
        check_memory(
            self.model,
            self.compute,
            self.compiled.tuning,
            self.mesh,
            self.data.train,
            longest=self.row_lengths[-1],
            batch_size=config.batch_size,
            accumulation_steps=config.accumulation_steps,
            clips=config.optimizer.clip_norm > 0,
            init_from=config.init_from,
            max_length=config.max_length,
        )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model that the run starts from."""
        return self.source.tokenizer

    @property
    def task(self) -> ClassifierTask:
        """The model with its loss."""
        return self.compiled.task

    @cached_property
    def plan(self) -> ByLength:
        """The training batches."""
        assert self.data.train is not None
        return ByLength(
            self.data.train.lengths, self.row_lengths, self.config.batch_size, self.config.seed
        )

    @cached_property
    def scorer(self) -> Scorer:
        """The scorer, which runs the model on whole sets."""
        steps = self.compiled.prediction_step, self.compiled.metrics_step
        return Scorer(self.mesh, self.task, *steps, self.config.rows_evaluated, self.row_lengths)

    @property
    def work_dir(self) -> Path:
        """The directory that the run writes to."""
        return Path(self.config.work_dir)

    @property
    def total_steps(self) -> int:
        """The number of steps in all epochs."""
        return self.config.num_epochs * self.plan.steps_per_epoch

    @property
    def intervals(self) -> Intervals:
        """The steps after which the run reports, evaluates and saves."""
        return self.config.intervals(self.plan.steps_per_epoch)

    @property
    def best_metric(self) -> str:
        """The validation metric that checkpoints are compared by."""
        return self.config.best_metric or self.data.best_metric

    @property
    def compared_by(self) -> Comparison:
        """The metric that checkpoints are compared by, and its direction."""
        return Comparison(self.best_metric, self.best_metric.endswith(LOSS))

    def identity(self) -> dict[str, object]:
        """Return the values that a checkpoint must share with this run to resume from it."""
        config = self.config
        assert self.data.train is not None
        return {
            "model": dataclasses.asdict(self.model),
            "optimizer": dataclasses.asdict(config.optimizer),
            "tuning": dataclasses.asdict(config.tuning),
            "seed": config.seed,
            "init_from": source_identity(self.source, Path(config.init_from), self.work_dir),
            "from_scratch": config.from_scratch,
            "batch_size": config.batch_size,
            "best_metric": self.best_metric,
            "row_lengths": list(self.row_lengths),
            # A user whose file has changed reads the keys; the values are only compared.
            "training examples (their file, its columns, max_length)": self.data.train.fingerprint,
            "validation examples (likewise)": {
                name: examples.fingerprint for name, examples in self.data.validation.items()
            },
            "tokenizer": self.tokenizer.fingerprint,
        }

    def first_state(self, checkpointer: Checkpointer) -> tuple[TrainState, str]:
        """Return the state to start from, and a description of its origin.

        It is this run's newest checkpoint; without one, it is random, with the parameters that
        the model shares with `init_from` unless the run is from scratch.
        """
        definition, config = self.task.definition, self.config
        step = checkpointer.latest_step()
        if step is not None:
            checkpointer.check_identity()  # first: another run's steps mean nothing here
            abstract = abstract_state(
                definition, self.compiled.optimizer, self.mesh, self.compiled.tuning.is_trainable
            )
            if step > self.total_steps:
                raise ValueError(
                    f"{config.work_dir} was trained for {step:,} steps, "
                    f"num_epochs={config.num_epochs} are {self.total_steps:,}: set num_epochs to "
                    "what it was or more, or take another work_dir"
                )
            return checkpointer.restore(abstract), f"this run's checkpoint of step {step:,}"
        state = self.compiled.init(parameter_key(config.seed))
        if config.from_scratch:
            return state, f"random parameters (seed {config.seed})"
        return state_from_source(self.source, state, self.model, config.init_from)

    def describe(self) -> list[str]:
        """Return lines about the model, its trainable part, the examples and the batches."""
        shapes, train = self.task.definition.shapes, self.data.train
        assert train is not None
        trainable = count(trainable_part(shapes, self.compiled.tuning.is_trainable))
        lengths = ", ".join(map(str, self.row_lengths))
        sets = {**self.data.validation, **self.data.test}
        held_out = [f"{examples.num_examples:,} {name}" for name, examples in sets.items()]
        epochs, trained_on = self.config.num_epochs, self.config.task.training_examples
        held_out += [] if self.data.test else ["no test set"]
        return [
            f"model      {count(shapes):,} parameters, {trainable:,} trainable; "
            f"{self.compute.dtype}, {self.compute.attention} attention",
            *dtype_hint(self.config.compute, self.mesh.devices.flat[0].platform),
            f"examples   {len(train):,} {trained_on}, {', '.join(held_out)}",
            *unknown_lines(self.data.features, self.tokenizer),
            f"batches    {self.total_steps:,} of {self.config.batch_size} in "
            f"{epochs} epoch{'s' * (epochs > 1)}, rows of {lengths} tokens, "
            f"{padding(train, self.plan):.1%} padding",
        ]

    def write_model(self, best_step: int | None) -> None:
        """Write the run's `model.json`; `best_step` is None before its end."""
        config = self.config
        named = "sizes and tokenizer of" if config.from_scratch else "source"
        describe_model(
            self.work_dir,
            {"command": "bert-jax finetune", named: config.init_from},
            self.model,
            self.tokenizer,
            self.compared_by,
            config.task.inference_defaults(config.max_length, self.data),
            best_step,
        )
