"""Perform a whole training run of a custom task, with the same loop as the commands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import optax
from jax.sharding import Mesh
from numpy.typing import NDArray

from bert_jax.goodput.categories import PREPARATION, RESTORE, SAVE
from bert_jax.goodput.ledger import Ledger
from bert_jax.goodput.text import goodput_lines
from bert_jax.runs.locations import WorkDir, open_work_dir
from bert_jax.runs.ownership import only_writer
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.tasks.task import Task
from bert_jax.training import loop
from bert_jax.training.accounting import open_ledger
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig, recover
from bert_jax.training.diagnosis import make_diagnosis
from bert_jax.training.distributed import StopRequest, on_first_process
from bert_jax.training.divergence import DivergenceConfig
from bert_jax.training.no_checkpoints import NoCheckpoints
from bert_jax.training.phase import HostBatch, Intervals, Phase
from bert_jax.training.reporting import Reporter
from bert_jax.training.reports import Message, OnReport, both_of
from bert_jax.training.rollback import Recovery
from bert_jax.training.state import TrainState, abstract_state
from bert_jax.training.step import TrainStep


class StepLoader(Protocol):
    """A source of reproducible batches, which can start at any step; see `CorpusLoader`."""

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


@dataclass(frozen=True)
class Fit:
    """A training run of one task; see `Trainer.fit`.

    Attributes:
      task: the model and the loss.
      optimizer: the optimizer, which skips steps according to `divergence`.
      mesh: the device mesh.
      seed: the seed for the initial parameters and for dropout.
      accumulation_steps: the number of micro-batches into which each batch is split.
      divergence: which steps to skip, and how often to roll back.
      train_step: the compiled train step.
      initial: a function that returns the state before the first step.
      loader: the batches.
      rows: the rows of each batch that this process supplies.
      steps: the number of steps in the whole run.
      save_every: the number of steps between checkpoints.
      report_every: the number of steps between reports.
      notify: the command to run when the run starts, ends, diverges or fails; "" for none.
      on_step: called with every step's number and metrics.
    """

    task: Task
    optimizer: optax.GradientTransformation
    mesh: Mesh
    seed: int
    accumulation_steps: int
    divergence: DivergenceConfig
    train_step: TrainStep
    initial: Callable[[], TrainState]
    loader: StepLoader
    rows: NDArray[np.int64]
    steps: int
    save_every: int
    report_every: int
    notify: str
    on_step: loop.OnStep

    def run(
        self,
        work_dir: str | os.PathLike[str] | None,
        on_report: OnReport | None,
        stop: StopRequest | None,
    ) -> TrainState:
        """Train to the end or until a stop is requested, and return the last state."""
        ledger = Ledger()
        ledger.switch(PREPARATION)
        if work_dir is None:
            self._check_without_work_dir()
            return self._run(None, ledger, on_report, stop)
        with open_work_dir(work_dir) as place:
            state = self._run(place, ledger, place.reporting(on_report), stop)
            place.finished = int(state.step) == self.steps
        return state

    def _run(
        self,
        place: WorkDir | None,
        ledger: Ledger,
        on_report: OnReport | None,
        stop: StopRequest | None,
    ) -> TrainState:
        work_dir = None if place is None else place.path
        report = on_first_process(on_report)
        with ExitStack() as closing:
            if work_dir is not None or stop is not None:
                # `StopRequest` exits last, so that a signal can kill the process only after a save.
                stop = closing.enter_context(stop or StopRequest())
            checkpointer, saved = self._open(place, ledger, closing, report, stop)
            if saved is not None and int(saved.step) == self.steps:
                return saved
            state = self.initial() if saved is None else saved
            on_report = report
            if work_dir is not None:
                notified = open_ledger(
                    ledger,
                    work_dir,
                    closing,
                    step=int(state.step),
                    total_steps=self.steps,
                    mesh=self.mesh,
                    peak_flops=None,
                    notify=self.notify,
                )
                on_report = both_of(report, notified)
            trainer = loop.Trainer(
                mesh=self.mesh,
                seed=self.seed,
                learning_rates=None,
                checkpointer=checkpointer,
                reporter=self._open_reporter(work_dir, int(state.step), on_report, closing, ledger),
                intervals=Intervals(self.report_every, 0, self.save_every),
                stop=stop or StopRequest(),
                ledger=ledger,
                recovery=self._recovery(checkpointer),
                on_step=self.on_step,
            )
            state, finished = trainer.run(state, [self._phase()])
            with ledger.during(SAVE):
                checkpointer.close()
            ledger.finish("finished" if finished else "stopped")
        # The ledger's last entry is written at the end of the `with` block.
        if goodput := ledger.goodput():
            report(Message("\n".join(goodput_lines(goodput))))
        if not finished:
            report(Message(f"stopped: saved step {int(state.step):,}; the same call resumes"))
        return state

    def _check_without_work_dir(self) -> None:
        if self.divergence.max_rollbacks:
            raise ValueError(
                f"divergence.max_rollbacks={self.divergence.max_rollbacks}: a run without work_dir "
                "has no checkpoints to roll back to. Set work_dir, or set max_rollbacks to 0."
            )
        if self.notify:
            raise ValueError(
                f"notify={self.notify!r}: a run without work_dir sends no notifications. Set "
                "work_dir, or leave out notify."
            )

    def _open(
        self,
        place: WorkDir | None,
        ledger: Ledger,
        closing: ExitStack,
        report: OnReport,
        stop: StopRequest | None,
    ) -> tuple[Checkpointer | NoCheckpoints, TrainState | None]:
        """Return the checkpointer, and the newest saved state or None if there is none."""
        if place is None:
            return NoCheckpoints(), None
        assert stop is not None, "a run with a work directory can be stopped"
        definition = self.task.definition
        identity = {
            "model": {name: list(shape.shape) for name, shape in definition.shapes.items()},
            "loss_terms": dict(self.task.loss_terms),
            "seed": self.seed,
            "batches": dict(self.loader.identity),
        }
        if jax.process_index() == 0:
            closing.enter_context(only_writer(place.path))
        closing.enter_context(place.uploading(stop))
        directory = place.path / CHECKPOINTS_NAME
        with ledger.during(RESTORE):
            recovery = recover(directory, identity, None)
            place.settle(recovery.step)
            for line in recovery.lines:
                report(Message(line))
            kept_checkpoints = CheckpointConfig(keep_best=0)
            checkpointer = closing.enter_context(
                Checkpointer(
                    directory,
                    kept_checkpoints,
                    identity,
                    verified=recovery.step,
                    mirror=place.uploads,
                )
            )
            if recovery.step is None:
                return checkpointer, None
            if recovery.step > self.steps:
                raise ValueError(
                    f"steps={self.steps}: {place.path} was trained for {recovery.step} steps. Set "
                    "steps to at least that, or choose another work_dir."
                )
            return checkpointer, checkpointer.restore(self._abstract())

    def _abstract(self) -> TrainState:
        return abstract_state(self.task.definition, self.optimizer, self.mesh)

    def _recovery(self, checkpointer: Checkpointer | NoCheckpoints) -> Recovery | None:
        if not self.divergence.enabled:
            return None
        return Recovery(self.divergence, checkpointer, self._abstract(), self.initial)

    def _open_reporter(
        self,
        work_dir: Path | None,
        start: int,
        on_report: OnReport,
        closing: ExitStack,
        ledger: Ledger,
    ) -> Reporter | None:
        """Return a reporter that `closing` closes, or None on all processes except the first."""
        if jax.process_index() != 0:
            return None
        reporter = Reporter(
            work_dir,
            [(self.steps, 1.0)],
            start_step=start,
            peak_flops=None,
            tensorboard=False,
            on_report=on_report,
            ledger=ledger,
        )
        closing.callback(reporter.close)
        return reporter

    def _phase(self) -> Phase:
        diagnose = None
        if self.divergence.enabled:
            diagnose = make_diagnosis(
                self.task, self.mesh, accumulation_steps=self.accumulation_steps
            )
        return Phase(
            name="fit",
            first_step=0,
            num_steps=self.steps,
            batch_size=self.loader.batch_size,
            train_step=self.train_step,
            batches=self._batches,
            evaluate=None,
            flops=lambda batch: 0.0,  # A custom task does not count its FLOPs.
            diagnose=diagnose,
        )

    @contextmanager
    def _batches(self, start: int) -> Iterator[Iterator[HostBatch]]:
        with self.loader.batches(start, rows=self.rows) as batches:
            yield self._checked(batches, start)

    def _checked(self, batches: Iterator[HostBatch], step: int) -> Iterator[HostBatch]:
        """Check the batches, starting at a given step.

        Raises:
          ValueError: a batch does not consist of arrays with the expected number of rows, or there
            is no next batch.
        """
        for batch in batches:
            arrays, rows = checked_arrays(batch)
            if rows != len(self.rows):
                raise ValueError(
                    f"batch: batch {step} of the loader has {rows} rows, but {len(self.rows)} were "
                    f"requested from it. Return these rows of a batch of {self.loader.batch_size}."
                )
            yield arrays
            step += 1
        raise ValueError(
            f"steps={self.steps}: the loader has only {step} batches. Reduce steps, or use an "
            "infinite loader."
        )


def checked_arrays(batch: Mapping[str, Any]) -> tuple[dict[str, NDArray], int]:
    """Return a batch as NumPy arrays, and its number of rows.

    Raises:
      ValueError: a value is a scalar, the batch is empty, or the numbers of rows differ.
    """
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
            f"batch: the arrays have {sorted(sizes)} rows. All of them must have the same number "
            "of rows."
        )
    return arrays, sizes.pop()
