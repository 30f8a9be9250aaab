"""Train a custom task on any mesh, either with checkpoints or step by step in your own loop."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import NDArray

from bert_jax.models.parameters import check_names
from bert_jax.runs.fit import Fit, StepLoader, checked_arrays
from bert_jax.tasks.task import Task
from bert_jax.training.distributed import StopRequest
from bert_jax.training.divergence import NO_CHECKS, DivergenceConfig, guarded
from bert_jax.training.loop import OnStep
from bert_jax.training.reports import OnReport
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
      divergence: which steps to skip because their loss or gradient norm is an outlier, and how
        often `fit` rolls back to an earlier checkpoint. By default, no steps are skipped.

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
        divergence: DivergenceConfig = NO_CHECKS,
    ):
        check_seed(seed)
        if accumulation_steps < 1:
            raise ValueError(f"accumulation_steps={accumulation_steps}: expected at least 1.")
        self.task, self.seed = task, seed
        self.mesh = _checked(mesh) if isinstance(mesh, Mesh) else make_mesh(mesh or MeshConfig())
        self._optimizer = guarded(optimizer, divergence)
        self._divergence = divergence
        self._accumulation_steps = accumulation_steps
        self._initial = {} if initial is None else dict(initial)
        self._check_initial()
        self._step = make_train_step(
            task, self._optimizer, self.mesh, accumulation_steps=accumulation_steps
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
          The next state and the batch's metrics: the task's own metrics, plus "loss",
          "gradient_norm" and, with `divergence`, "skipped", "outliers" and the limits "loss_limit"
          and "gradient_norm_limit". The values are scalars that may not have been computed yet.

        Raises:
          ValueError: the batch cannot be split over the mesh.
        """
        next_state, metrics = self._step(state, self._placed(batch), self._inputs())
        return next_state, {name: metric.mean() for name, metric in metrics.items()}

    def on_step(self, callback: OnStep, *, every: int = 1) -> None:
        """Call `callback(step, metrics)` during `fit`.

        Args:
          callback: called with the step number and the metrics of its batch, as `step` returns
            them, while the next step is running. In a run with `divergence`, the metrics include
            `skipped`, which is 1 if the step was skipped and 0 otherwise.
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
        report_every: int = 100,
        notify: str = "",
        on_report: OnReport | None = None,
        stop: StopRequest | None = None,
    ) -> TrainState:
        """Train until `steps` steps are complete, and return the last state.

        If `work_dir` is given, a checkpoint is saved every `save_every` steps and at the end.
        Another call with the same arguments resumes from the newest checkpoint, as if training had
        never been interrupted. If this method runs in the main thread, SIGTERM, SIGHUP and Ctrl-C
        save a checkpoint at the next step and end the call early. Therefore, compare the state's
        step with `steps` before you use the result. Like the commands, the run writes
        `goodput.jsonl`, `heartbeat.json`, `metrics.jsonl` and `curves.png`, and `bert-jax status`
        describes it.

        Args:
          loader: the batches. The batch for step n must not depend on which batches were read
            before.
          steps: the total number of steps, including the steps of earlier calls with the same
            `work_dir`.
          work_dir: the directory to write to, or its URL in a bucket; if None, nothing is written.
          save_every: the number of steps between checkpoints.
          report_every: the number of steps between reports.
          notify: a shell command to execute when the run starts, ends, rolls back or fails; "" for
            none. It receives the details as JSON on its standard input, and requires `work_dir`.
          on_report: called with every message and report; None for no callback.
          stop: an object whose `request()` any thread may call, with the same effect as the
            signals.

        Raises:
          ValueError: `work_dir` belongs to another training run, the batch size cannot be split
            over the mesh, or an argument requires `work_dir`.
          TrainingDiverged: a metric or the state to save became NaN or infinite, or the run has
            diverged again after the maximum number of rollbacks. It is a ValueError.
          CheckpointNotSaved: a checkpoint could not be written.
        """
        if min(steps, save_every, report_every) < 1:
            raise ValueError(
                f"steps={steps}, save_every={save_every}, report_every={report_every}: all of them "
                "must be at least 1."
            )

        def call_back(step: int, metrics: Mapping[str, float]) -> None:
            for callback, every in self._callbacks:
                if step == steps or step % every == 0:
                    callback(step, metrics)

        run = Fit(
            task=self.task,
            optimizer=self._optimizer,
            mesh=self.mesh,
            seed=self.seed,
            accumulation_steps=self._accumulation_steps,
            divergence=self._divergence,
            train_step=self._step,
            initial=self.init,
            loader=loader,
            rows=self._rows(loader.batch_size),
            steps=steps,
            save_every=save_every,
            report_every=report_every,
            notify=notify,
            on_step=call_back,
        )
        return run.run(work_dir, on_report, stop)

    def _inputs(self) -> StepInputs:
        # The optimizer has its own schedule, and ignores the learning rate that the step passes.
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
        arrays, rows = checked_arrays(batch)
        size = rows * jax.process_count()
        return to_global(arrays, self.mesh, self._rows(size), size)

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
