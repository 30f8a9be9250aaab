"""Train a custom task on any mesh, either with checkpoints or step by step in your own loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import NDArray

from bert_jax.models.parameters import check_names
from bert_jax.runs.ownership import only_writer
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.tasks.task import Task
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, recover
from bert_jax.training.evaluation import require_finite_metrics, require_finite_state
from bert_jax.training.sharding import (
    MeshConfig,
    batch_extent,
    local_rows,
    make_mesh,
    to_global,
)
from bert_jax.training.state import TrainState, abstract_state, init_state, shardings_of
from bert_jax.training.step import StepInputs, make_train_step
from bert_jax.validation import check_seed

HostBatch = Mapping[str, NDArray]
OnStep = Callable[[int, Mapping[str, float]], None]


class StepLoader(Protocol):
    """A source of batches that can be reproduced starting at any step; see `CorpusLoader`."""

    @property
    def identity(self) -> Mapping[str, object]:
        """Plain JSON values that determine the batches."""
        ...

    @property
    def batch_size(self) -> int:
        """The number of rows per batch, across all processes."""
        ...

    def batches(
        self, start_step: int = 0, *, rows: NDArray[np.int64] | None = None
    ) -> AbstractContextManager[Iterator[HostBatch]]:
        """Return a context manager for an iterator over the batches, starting at a given step.

        Args:
          start_step: the step of the first batch.
          rows: the rows of each batch to return; if None, all of them.
        """
        ...


class Trainer:
    """Trains one task with one optimizer on one mesh.

    `fit` performs a whole training run, and resumes exactly from its checkpoints. To write your own
    loop, call `init` once and `step` for every batch::

        trainer = Trainer(task, optax.adamw(1e-4))
        state = trainer.init()
        for batch in loader:
            state, metrics = trainer.step(state, batch)

    Args:
      task: the model and the loss, for example a `CustomTask`.
      optimizer: any optax optimizer, including its learning-rate schedule.
      mesh: a mesh, or the number of devices on each axis; if None, all devices split the batch.
      seed: the seed for the initial parameters and for dropout.
      accumulation_steps: the number of micro-batches into which each batch is split.
      initial: parameters to start from, keyed by name. All other parameters are randomly
        initialized.

    Raises:
      ValueError: the mesh does not fit the devices, or `initial` does not fit the model.
    """

    def __init__(
        self,
        task: Task,
        optimizer: optax.GradientTransformation,
        *,
        mesh: MeshConfig | Mesh | None = None,
        seed: int = 0,
        accumulation_steps: int = 1,
        initial: Mapping[str, Any] | None = None,
    ):
        check_seed(seed)
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps={accumulation_steps}: expected at least 1.")
        self.task, self.seed = task, seed
        self.mesh = _checked(mesh) if isinstance(mesh, Mesh) else make_mesh(mesh or MeshConfig())
        self._optimizer = optimizer
        self._accumulation_steps = accumulation_steps
        self._initial = {} if initial is None else dict(initial)
        self._check_initial()
        self._step = make_train_step(
            task, optimizer, self.mesh, accumulation_steps=accumulation_steps
        )
        self._callbacks: list[tuple[OnStep, int]] = []

    def init(self) -> TrainState:
        """Return the state before the first step, laid out on the mesh."""
        definition = self.task.definition
        state = init_state(definition, self._optimizer, self.mesh, self.seed)
        if not self._initial:
            return state
        params = dict(state.params)
        for name, value in self._initial.items():
            array = jnp.asarray(value, params[name].dtype)
            params[name] = jax.device_put(array, params[name].sharding)
        # Some optimizers, such as schedule-free ones, hold a copy of the parameters.
        shardings = shardings_of(abstract_state(definition, self._optimizer, self.mesh))
        opt_state = jax.jit(self._optimizer.init, out_shardings=shardings.opt_state)(params)
        return TrainState(state.step, params, opt_state)

    def step(
        self, state: TrainState, batch: Mapping[str, Any]
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """Update the state with one batch.

        Args:
          state: the current state. Its buffers are reused, so do not read it afterwards.
          batch: arrays whose first dim is the batch. With multiple processes, it contains only the
            rows for this process's devices (see `local_rows`).

        Returns:
          The next state and the batch's metrics: the task's own metrics, plus "loss" and
          "gradient_norm". They are scalars that may not have been computed yet.

        Raises:
          ValueError: the batch cannot be split over the mesh.
        """
        next_state, metrics = self._step(state, self._placed(batch), self._inputs())
        return next_state, {name: metric.mean() for name, metric in metrics.items()}

    def on_step(self, callback: OnStep, *, every: int = 1) -> None:
        """Call `callback(step, metrics)` during `fit`.

        Args:
          callback: called with the step number and the metrics of its batch. Each call has to wait
            for the step to finish, so use a large `every`.
          every: the number of steps between calls; there is also a call after the last step.

        Raises:
          ValueError: `every` is less than 1.
        """
        if every < 1:
            raise ValueError(f"every={every}: expected at least 1.")
        self._callbacks.append((callback, every))

    def fit(
        self,
        loader: StepLoader,
        steps: int,
        *,
        work_dir: str | os.PathLike[str] | None = None,
        save_every: int = 1_000,
    ) -> TrainState:
        """Train until `steps` steps are done, and return the last state.

        If `work_dir` is given, a checkpoint is saved every `save_every` steps and at the end.
        Another call with the same arguments resumes from the newest checkpoint, as if training had
        never been interrupted.

        Args:
          loader: the batches. The batch for step n must not depend on which batches were read
            before.
          steps: the total number of steps, including those of earlier calls with the same
            `work_dir`.
          work_dir: the directory to save checkpoints in; if None, nothing is saved.
          save_every: the number of steps between checkpoints.

        Raises:
          ValueError: `work_dir` belongs to another training run, the batch size cannot be split
            over the mesh, or training diverged.
          CheckpointNotSaved: a checkpoint could not be written.
        """
        if steps < 1 or save_every < 1:
            raise ValueError(f"steps={steps}, save_every={save_every}: both must be at least 1.")
        rows = self._rows(loader.batch_size)
        with ExitStack() as closing:
            checkpointer, state = None, None
            if work_dir is not None:
                checkpointer, state = self._open(Path(work_dir), loader, closing)
            state = self.init() if state is None else state
            first = int(state.step)
            if first > steps:
                raise ValueError(
                    f"steps={steps}: {work_dir} was trained for {first} steps. Set steps to at "
                    "least that, or choose another work_dir."
                )
            batches = closing.enter_context(loader.batches(first, rows=rows))
            for step in range(first + 1, steps + 1):
                batch = next(batches, None)
                if batch is None:
                    raise ValueError(
                        f"steps={steps}: the loader has only {step - 1} batches. Reduce steps, or "
                        "use an infinite loader."
                    )
                state, metrics = self.step(state, batch)
                self._call_back(step, metrics, last=step == steps)
                if checkpointer is not None:
                    checkpointer.raise_if_failed()
                    if step % save_every == 0 or step == steps:
                        require_finite_state(state, self.mesh)
                        checkpointer.save(state, None)
            if checkpointer is None:
                require_finite_state(state, self.mesh)
        return state

    def _inputs(self) -> StepInputs:
        # The optimizer has its own schedule, so it ignores the step's learning rate.
        return StepInputs(np.uint32(self.seed), np.float32(0.0))

    def _rows(self, batch_size: int) -> NDArray[np.int64]:
        """Return the rows of a batch that this process supplies."""
        rows = local_rows(self.mesh, batch_size)
        parts = batch_extent(self.mesh) * self._accumulation_steps
        if batch_size % parts:
            raise ValueError(
                f"batch_size={batch_size} is not divisible by {parts} (mesh parts times "
                f"accumulation_steps={self._accumulation_steps}). Set it to a multiple of {parts}."
            )
        return rows

    def _placed(self, batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        arrays = {name: np.asarray(x) for name, x in batch.items()}
        scalars = [name for name, x in arrays.items() if x.ndim == 0]
        if scalars or not arrays:
            raise ValueError(
                f"batch: expected arrays whose first dim is the batch, but "
                f"{f'{scalars[0]} is a scalar' if scalars else 'it is empty'}."
            )
        sizes = {len(x) for x in arrays.values()}
        if len(sizes) != 1:
            raise ValueError(
                f"batch: the arrays have {sorted(sizes)} rows. All of them must have the same "
                "number of rows."
            )
        size = sizes.pop() * jax.process_count()
        return to_global(arrays, self.mesh, self._rows(size), size)

    def _call_back(self, step: int, metrics: Mapping[str, jax.Array], *, last: bool) -> None:
        due = [callback for callback, every in self._callbacks if last or step % every == 0]
        if not due:
            return
        values = {name: float(value) for name, value in metrics.items()}
        require_finite_metrics(step, values)
        for callback in due:
            callback(step, values)

    def _open(
        self, work_dir: Path, loader: StepLoader, closing: ExitStack
    ) -> tuple[Checkpointer, TrainState | None]:
        """Return the checkpointer, and the newest saved state or None if there is none."""
        definition = self.task.definition
        identity = {
            "model": {name: list(shape.shape) for name, shape in definition.shapes.items()},
            "loss_terms": dict(self.task.loss_terms),
            "seed": self.seed,
            "batches": dict(loader.identity),
        }
        if jax.process_index() == 0:
            closing.enter_context(only_writer(work_dir))
        directory = work_dir / CHECKPOINTS_NAME
        recovery = recover(directory, identity, None)
        kept_checkpoints = CheckpointConfig(keep_best=0)
        checkpointer = closing.enter_context(
            Checkpointer(directory, kept_checkpoints, identity, verified=recovery.step)
        )
        if recovery.step is None:
            return checkpointer, None
        return checkpointer, checkpointer.restore(
            abstract_state(definition, self._optimizer, self.mesh)
        )

    def _check_initial(self) -> None:
        shapes = self.task.definition.shapes
        if not self._initial.keys() <= shapes.keys():
            check_names(self._initial.keys() | shapes.keys(), shapes)
        for name, value in self._initial.items():
            if tuple(np.shape(value)) != tuple(shapes[name].shape):
                raise ValueError(
                    f"initial: {name} has the shape {np.shape(value)}, but the model's parameter "
                    f"has {tuple(shapes[name].shape)}. Leave it out, or change the model."
                )


def _checked(mesh: Mesh) -> Mesh:
    """Return the caller's mesh, or raise ValueError if an axis is missing."""
    axes = tuple(MeshConfig().sizes())
    if not set(axes) <= set(mesh.axis_names):
        raise ValueError(
            f"mesh: its axes are {mesh.axis_names}; expected {axes}. Give unused axes a size of 1, "
            "or pass a MeshConfig."
        )
    return mesh
