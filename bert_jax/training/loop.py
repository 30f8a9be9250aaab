"""The training loop: an explicit order of operations, the same for every task.

It can trace a few steps for XProf: what the devices did, and what they waited for.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.models.parameters import Parameters
from bert_jax.training.checkpoint import Checkpointer, CheckpointNotSaved
from bert_jax.training.distributed import StopRequest, StopRequested
from bert_jax.training.evaluation import (
    EarlyStopping,
    ReportWindow,
    TrainingDiverged,
    require_finite_metrics,
    require_finite_state,
    to_the_end,
)
from bert_jax.training.optimizer import LearningRates
from bert_jax.training.sharding import local_rows, to_global
from bert_jax.training.step import StepInputs, TrainState, TrainStep

logger = logging.getLogger(__name__)

# Compiling, filling queues and growing pools are not what a step costs.
SKIPPED = 10


class StepProfiler:
    """Traces `count` steps into `directory`, those after the first ten of a start; 0 traces none.

    Every process writes what its own devices did. A run that ends sooner leaves what there is.
    """

    def __init__(self, directory: Path, count: int):
        self._directory = directory
        self._count = count
        self._steps = 0
        self._tracing = False

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def before_step(self, state: Any) -> None:
        """To be called with what the step before gives, which is waited for at either end."""
        if self._count and self._steps == SKIPPED:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        if self._tracing and self._steps == SKIPPED + self._count:
            jax.block_until_ready(state)
            self._stop()
        self._steps += 1

    def _stop(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        traced = min(self._steps - SKIPPED, self._count)
        logger.info("traced %d steps into %s (for XProf)", traced, self._directory)


HostBatch = Mapping[str, np.ndarray]
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class Phase:
    """A stretch of a run on one kind of batches.

    first_step: of the run. batches: from a step of the phase on, this process's rows of each
    batch, in a context that ends with the phase. evaluate: parameters to metrics on data that is
    not trained on; the same on every process. It calls what it is given after every batch, which
    may raise to end it. None where nothing is evaluated. flops: model FLOPs of a step on a batch.
    """

    name: str
    first_step: int
    num_steps: int
    batch_size: int
    batches: Callable[[int], AbstractContextManager[Iterator[HostBatch]]]
    evaluate: Callable[[Parameters, Callable[[], None]], Mapping[str, float]] | None
    flops: Callable[[HostBatch], float]

    @property
    def end(self) -> int:
        """The first step of the run after this phase."""
        return self.first_step + self.num_steps


class RunReporter(Protocol):
    """What the loop tells; see bert_jax.training.reporting.Reporter."""

    def train(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        learning_rate: float,
        real_tokens: float,
        flops: float,
        seconds: float,
        stall_seconds: float,
        steps: int,
    ) -> None: ...

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None: ...


@dataclass(frozen=True)
class Intervals:
    """Steps between reports, evaluations and checkpoints.

    evaluate: not always whole: evaluations come after the steps nearest to its multiples (a half
      is rounded up), so that those of an epoch neither drift nor miss its end; and after the
      last step. 0 for none.
    save_evaluated: whether every evaluated state is saved too, as it may prove the best.
    """

    report: int
    evaluate: int | Fraction
    save: int
    save_evaluated: bool = False

    def evaluates(self, step: int) -> bool:
        """Whether an evaluation is due after `step` steps."""
        if not self.evaluate:
            return False
        half = Fraction(1, 2)
        return math.ceil((step + half) / self.evaluate) > math.ceil((step - half) / self.evaluate)


@dataclass
class Trainer:
    """Everything the loop works with.

    seed: of dropout. learning_rates: of every step of the run. reporter: None on every process but
    the first. early: ends the run when it gets no better; it has seen the evaluations so far.
    profiler: traces some of the steps.
    """

    mesh: Mesh
    train_step: TrainStep
    seed: int
    learning_rates: LearningRates
    checkpointer: Checkpointer
    reporter: RunReporter | None
    intervals: Intervals
    stop: StopRequest
    early: EarlyStopping | None = None
    profiler: StepProfiler | None = None
    _window: ReportWindow = field(init=False)
    # The step of the newest state that was saved, and the held-out metrics of the newest state.
    _saved: int = field(init=False)
    _metrics: Mapping[str, float] | None = field(init=False, default=None)

    def run(self, state: TrainState, phases: Sequence[Phase]) -> tuple[TrainState, bool]:
        """Trains from `state.step` to the end of the last phase.

        Returns:
          The last state, and whether the run is finished: False when told to stop, in which case
          the state has been saved and the same command goes on from it.

        Raises:
          TrainingDiverged: a metric or the state to save became NaN or infinite; names step and
            metric. Earlier checkpoints are intact.
          CheckpointNotSaved: a checkpoint could not be written; raised at the next step.
        """
        step = self._saved = int(state.step)
        total = phases[-1].end
        if self._evaluation_missed(step, total):
            phase = next(phase for phase in phases if step <= phase.end)
            try:
                self._evaluate(state, step, phase, stoppable=True)
            except StopRequested:
                return state, False
        if self.early and self.early.enough:
            return state, True
        self._window = ReportWindow(step, began=time.perf_counter())
        for phase in phases:
            if step >= phase.end:
                continue
            rows = local_rows(self.mesh, phase.batch_size)
            with phase.batches(step - phase.first_step) as batches:
                while step < phase.end:
                    # Take the next batch, dispatch the step, and only then look at the step
                    # before: the device never waits for the host.
                    waiting = time.perf_counter()
                    local = self._next_batch(batches, state, step)
                    if local is None:
                        return state, False
                    batch = to_global(local, self.mesh, rows, phase.batch_size)
                    self._window.stall_seconds += time.perf_counter() - waiting
                    inputs = StepInputs(np.uint32(self.seed), self.learning_rates[step])
                    if self.profiler:
                        self.profiler.before_step(state)
                    with jax.profiler.StepTraceAnnotation("step", step_num=step + 1):
                        state, metrics = self.train_step(state, batch, inputs)
                    self._report_pending()
                    self.checkpointer.raise_if_failed()
                    step += 1
                    self._window.dispatched(step, metrics, phase.flops(local))
                    # Between two steps, in this order: evaluate, save, leave if told to. The state
                    # holds exactly the batches before `step`: none is skipped or seen twice.
                    if self._between_steps(state, step, phase, total):
                        return state, False
                    if self.early and self.early.enough:
                        return state, True
        return state, True

    def _next_batch(
        self, batches: Iterator[HostBatch], state: TrainState, step: int
    ) -> HostBatch | None:
        """Return the next batch, or None after a request to stop while it was overdue.

        Saves the state before it returns None or raises: a data error does not affect the state.
        """
        try:
            return next(batches)
        except Exception as error:
            self._save_in_need(state, step, error)
            if isinstance(error, StopRequested):
                return None
            raise

    def _save(self, state: TrainState, step: int) -> None:
        require_finite_state(state, self.mesh)
        self.checkpointer.save(state, self._metrics)
        self._saved = step

    def _save_in_need(self, state: TrainState, step: int, error: Exception) -> None:
        """Save before `error` ends the run; if saving fails, log `error` and raise the failure."""
        # With several processes, the others have begun the next step and cannot take part.
        if step <= self._saved or jax.process_count() > 1:
            return
        try:
            self._report_pending(tell=True)
            self._save(state, step)
            self.checkpointer.raise_if_failed(wait=True)
        except (CheckpointNotSaved, TrainingDiverged):
            if not isinstance(error, StopRequested):
                _LOGGER.error("%s", error)
            raise
        _LOGGER.info("saved step %s; run the same command to resume", f"{step:,}")

    def _evaluation_missed(self, step: int, total: int) -> bool:
        """Whether the run stopped right where it was to evaluate: it saved and left instead.

        Or where it now ends, after it was given fewer steps.
        """
        due = step > 0 and self._judges(step, total)
        return due and not self.checkpointer.latest_was_evaluated()

    def _judges(self, step: int, total: int) -> bool:
        return self.intervals.evaluates(step) or (step == total and self.intervals.evaluate > 0)

    def _between_steps(self, state: TrainState, step: int, phase: Phase, total: int) -> bool:
        stopping = step < total and self.stop.stop_now()
        last = step == total
        evaluating = self._judges(step, total) and not stopping
        saving = step % self.intervals.save == 0 or last or stopping
        saving = saving or (evaluating and self.intervals.save_evaluated)
        self._metrics = None
        if not (evaluating or saving):
            return False
        # A state whose metrics are not finite must never be saved; and what was gathered is told
        # before a save, so that a run resumed from it tells the same from there on.
        self._report_pending(tell=saving)
        began = time.perf_counter()
        if evaluating:
            try:
                stoppable = not last or self.early is not None
                self._metrics = self._evaluate(state, step, phase, stoppable=stoppable)
            except StopRequested:
                saving = stopping = True
                self._report_pending(tell=True)
            except TrainingDiverged:
                raise
            except Exception as error:
                self._save_in_need(state, step, error)
                raise
        if saving:
            self._save(state, step)
        self._window.excluded_seconds += time.perf_counter() - began
        return stopping

    def _evaluate(
        self, state: TrainState, step: int, phase: Phase, *, stoppable: bool
    ) -> dict[str, float]:
        """Not stoppable is the last one, whose state could not be saved again with what it gives.

        `early` remembers that without the checkpoint, and then it may be made up for.
        """
        assert phase.evaluate is not None
        metrics = dict(
            phase.evaluate(state.params, self.stop.raise_if_stopping if stoppable else to_the_end)
        )
        require_finite_metrics(step, {f"held-out {name}": value for name, value in metrics.items()})
        if self.reporter:
            self.reporter.evaluation(step, metrics)
        if self.early:
            self.early.observe(step, metrics)
        return metrics

    def _report_pending(self, *, tell: bool = False) -> None:
        """Takes in the step before, and reports when due or when asked to `tell`."""
        window = self._window
        if window.pending is not None:
            window.collect()
        step = window.last_step
        due = step % self.intervals.report == 0
        if step == window.first_step or not (due or tell):
            return
        if self.reporter:
            means, sums = window.totals.means(), window.totals.sums()
            real_tokens = sums["tokens"]
            del means["tokens"]
            self.reporter.train(
                step,
                means,
                learning_rate=float(self.learning_rates[step - 1]),
                real_tokens=real_tokens,
                flops=window.flops,
                seconds=window.collected - window.began - window.excluded_seconds,
                stall_seconds=window.stall_seconds,
                steps=step - window.first_step,
            )
        # From when the step was seen to be done: the next one ran while this was reported.
        self._window = ReportWindow(step, began=window.collected)
