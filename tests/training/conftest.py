"""Provide a task that compiles quickly, and training runs that can be stopped at any step."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh

from bert_jax.models.parameters import define
from bert_jax.tasks.task import Batch, Metric, Metrics, Task, weighted_mean
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.distributed import StopRequest
from bert_jax.training.evaluation import HeldOutMetrics
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.loop import Trainer
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.phase import HostBatch, Intervals, Phase
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import make_evaluation_step, make_train_step

DIM, SEED, STEPS = 8, 3, 10
CONFIG = OptimizerConfig(peak_learning_rate=0.05, warmup_steps=2)
RATES = LearningRates(CONFIG, STEPS)
OPTIMIZER = make_optimizer(CONFIG)
INTERVALS = Intervals(report=1, evaluate=5, save=4)
KEEP_ALL = CheckpointConfig(keep_last=100, keep_best=0)


class Line(nnx.Module):
    """An affine map whose parameters have names and axes like those in a real model."""

    def __init__(self, rngs: nnx.Rngs, dim: int):
        self.dense = nnx.Linear(
            dim,
            4,
            kernel_metadata={"logical_axes": ("embed", "ffn")},
            bias_metadata={"logical_axes": ("ffn",)},
            rngs=rngs,
        )


class Fitting:
    """A task that fits `Line` to map `x` [batch, dim] to `y` [batch, 4].

    The rows have the weights `weight` [batch]. If there is a dropout key, noise is added to `x`.
    """

    loss_terms = {"mlm_loss": 1.0}

    def __init__(self, dim: int):
        self.definition = define(lambda rngs: Line(rngs, dim))

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm_loss": jnp.sum(batch["weight"])}

    def metrics(self, model: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        x = batch["x"]
        if dropout_key is not None:
            x = x + 0.1 * jax.random.normal(dropout_key, x.shape)
        errors = jnp.sum((model.dense(x) - batch["y"]) ** 2, axis=1)
        return {
            "mlm_loss": weighted_mean(errors, batch["weight"]),
            "tokens": Metric(jnp.sum(batch["weight"]), jnp.ones(())),
        }


@pytest.fixture(scope="session")
def make_task() -> Callable[[int], Task]:
    return Fitting


def example_batch(seed: list[int], size: int, counted: int | None = None) -> HostBatch:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((size, DIM), np.float32),
        "y": rng.standard_normal((size, 4), np.float32),
        "weight": (np.arange(size) < (size if counted is None else counted)).astype(np.float32),
    }


@dataclass
class Recorder:
    """A reporter that records all events in order."""

    events: list[tuple[str, int]] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, dict[str, float]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    def train(self, step: int, metrics: Any, **details: Any) -> None:
        self.events.append(("report", step))
        self.losses[step] = metrics["loss"]
        self.details.append({"step": step, **details, **metrics})

    def evaluation(self, step: int, metrics: Any) -> None:
        self.events.append(("evaluate", step))
        self.held_out[step] = dict(metrics)


@dataclass
class Bench:
    """The compiled steps that the runs in these tests share, and methods that start the runs."""

    mesh: Mesh
    task: Task
    train_step: Any
    evaluation_step: Any
    rates: Any = field(default_factory=lambda: RATES)
    num_steps: int = STEPS
    recorder: type[Recorder] = Recorder
    example_batch: Callable[..., HostBatch] = staticmethod(example_batch)

    def phases(self, events: list | None = None, poison: int | None = None) -> list[Phase]:
        """Return two phases: six steps of 4 rows, followed by four steps of 8 rows.

        The batch for step `poison` contains NaNs.
        """

        def phase(name: str, first: int, count: int, size: int) -> Phase:
            def batches(start: int) -> Iterator[HostBatch]:
                for step in range(start, count):
                    if events is not None:
                        events.append(("batch", first + step))
                    batch = dict(example_batch([first, step], size))
                    if first + step == poison:
                        batch["y"] = batch["y"] * np.float32("nan")
                    yield batch

            def held_out() -> Iterator[HostBatch]:
                # There are seven rows in batches of four, so the last batch is ragged.
                yield example_batch([99, 0], 4)
                yield example_batch([99, 1], 4, counted=3)

            return Phase(
                name=name,
                first_step=first,
                num_steps=count,
                batch_size=size,
                train_step=self.train_step,
                batches=lambda start: closing(batches(start)),
                evaluate=HeldOutMetrics(self.mesh, self.evaluation_step, 4, held_out),
                flops=lambda batch: 100.0 * len(batch["x"]),
            )

        return [phase("phase1", 0, 6, 4), phase("phase2", 6, 4, 8)]

    def fresh(self) -> TrainState:
        return init_state(self.task.definition, OPTIMIZER, self.mesh, SEED)

    def trainer(
        self,
        checkpointer: Any,
        recorder: Any,
        intervals: Intervals,
        stop: Any = None,
    ) -> Trainer:
        return Trainer(
            mesh=self.mesh,
            seed=SEED,
            learning_rates=RATES,
            checkpointer=checkpointer,
            reporter=recorder,
            intervals=intervals,
            stop=stop or StopRequest(),
        )

    def run(
        self,
        directory: Path,
        recorder: Any,
        *,
        intervals: Intervals = INTERVALS,
        stop: Any = None,
        poison: int | None = None,
        change: Callable[[Phase], Phase] = lambda phase: phase,
    ) -> tuple[TrainState, bool]:
        """Start or resume a run as the command does, after applying `change` to its phases."""
        with Checkpointer(directory, KEEP_ALL, {}) as checkpointer:
            if checkpointer.latest_step() is None:
                state = self.fresh()
            else:
                abstract = abstract_state(self.task.definition, OPTIMIZER, self.mesh)
                state = checkpointer.restore(abstract)
            trainer = self.trainer(checkpointer, recorder, intervals, stop)
            return trainer.run(state, [change(phase) for phase in self.phases(poison=poison)])


@pytest.fixture(scope="session")
def bench(make_task: Callable[[int], Task]) -> Bench:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    task = make_task(DIM)
    train_step = make_train_step(task, OPTIMIZER, mesh)
    return Bench(mesh, task, train_step, make_evaluation_step(task, mesh))


@pytest.fixture(scope="session")
def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainState, Recorder]:
    """Return the final state and the recorder of an uninterrupted run."""
    recorder = bench.recorder()
    state, finished = bench.run(tmp_path_factory.mktemp("whole"), recorder)
    assert finished
    return state, recorder
