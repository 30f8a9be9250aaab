"""Run the training loop, which performs the same operations in the same order for every task."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.goodput.categories import DOWNSTREAM, EVALUATION, OTHER, RESTORE, SAVE
from bert_jax.goodput.ledger import Ledger
from bert_jax.training.averaging import average_of
from bert_jax.training.batch_waits import BatchWaits
from bert_jax.training.checkpoint import Checkpointer, CheckpointNotSaved
from bert_jax.training.distributed import StopRequest, StopRequested
from bert_jax.training.divergence import with_guard
from bert_jax.training.evaluation import (
    EarlyStopping,
    ReportWindow,
    TrainingDiverged,
    require_finite_metrics,
    require_finite_state,
    to_the_end,
)
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.no_checkpoints import NoCheckpoints
from bert_jax.training.phase import HostBatch, Intervals, Phase
from bert_jax.training.profiling import StepProfiler
from bert_jax.training.reports import AVERAGE_PREFIX, DivergenceReport
from bert_jax.training.rollback import Recovery
from bert_jax.training.sharding import local_rows, to_global
from bert_jax.training.state import TrainState
from bert_jax.training.step import StepInputs
from bert_jax.training.step_outcome import Diverged, StepOutcome

logger = logging.getLogger(__name__)

OnStep = Callable[[int, Mapping[str, float]], None]


class RunReporter(Protocol):
    """Receives the loop's measurements; see bert_jax.training.reporting.Reporter."""

    def train(
        self,
        step: int,
        metrics: Mapping[str, float],
        *,
        learning_rate: float | None,
        real_tokens: float,
        flops: float,
        seconds: float,
        stall_seconds: float,
        steps: int,
    ) -> None:
        """Report on the steps since the last report."""
        ...

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics on the held-out set."""
        ...

    def divergence(self, report: DivergenceReport) -> None:
        """Report a skipped step or a rollback."""
        ...


class AfterSave(Protocol):
    """An action to perform on a saved checkpoint before training continues."""

    def due(self, step: int) -> bool:
        """Return whether the action is due after a step that was evaluated."""
        ...

    def __call__(self, step: int) -> bool:
        """Perform the action on the checkpoint at `step`, unless this was already done.

        The result is False if the run was asked to stop.
        """
        ...


@dataclass
class Trainer:
    """The training loop and everything that it needs.

    Attributes:
      mesh: the device mesh.
      seed: the dropout seed.
      learning_rates: the learning rate for every step of the run; None if the optimizer has a
        schedule of its own.
      checkpointer: saves the run's checkpoints, if it has any.
      reporter: receives the measurements; None on all processes except the first.
      intervals: how often to report, evaluate and save.
      stop: a request to stop, which is checked after every step.
      early: ends the run when its metric no longer improves. All earlier evaluations must already
        be recorded in this object.
      profiler: traces a few steps; None for no trace.
      evaluate_first: whether to evaluate the state before the first step of the run, provided that
        `intervals` enables evaluations.
      after_save: an action on evaluated checkpoints, which are saved for that purpose; None for no
        action.
      ledger: accounts for the run's time.
      recovery: goes back to an earlier state if a guarded run diverges; None for a run without a
        guard.
      on_step: called with the number and the metrics of every step, while the next step is running;
        None for no callback. In a guarded run, the metrics include `skipped`, and the metrics of a
        skipped step can be NaN or infinite.
    """

    mesh: Mesh
    seed: int
    learning_rates: LearningRates | None
    checkpointer: Checkpointer | NoCheckpoints
    reporter: RunReporter | None
    intervals: Intervals
    stop: StopRequest
    early: EarlyStopping | None = None
    profiler: StepProfiler | None = None
    evaluate_first: bool = False
    after_save: AfterSave | None = None
    ledger: Ledger = field(default_factory=Ledger)
    recovery: Recovery | None = None
    on_step: OnStep | None = None
    _window: ReportWindow = field(init=False)
    # The step of the newest saved state, and the held-out metrics of the newest state.
    _saved: int = field(init=False)
    _metrics: Mapping[str, float] | None = field(init=False, default=None)
    # The newest state, and whether the run was asked to stop before it diverged.
    _state: TrainState | None = field(init=False, default=None)
    _stopping: bool = field(init=False, default=False)

    def run(self, state: TrainState, phases: Sequence[Phase]) -> tuple[TrainState, bool]:
        """Train from `state.step` to the end of the last phase.

        Args:
          state: the state to start from; its buffers are reused.
          phases: the phases of the run, in order.

        Returns:
          The last state, and whether the run is finished. If not, the run was asked to stop: its
          state has been saved, and the same command resumes from there.

        Raises:
          TrainingDiverged: a metric or the state to save became NaN or infinite, or the run has
            diverged again after the maximum number of rollbacks. The message contains the step and
            the metric. Earlier checkpoints are intact.
          CheckpointNotSaved: a checkpoint could not be written; this is raised at the next step.
        """
        self._state, restored = state, False
        try:
            while True:
                try:
                    return self._train(self._state, phases, restored=restored)
                except Diverged as diverged:
                    self._state, restored = self._rolled_back(diverged, phases), True
        finally:
            self._state = None

    def _train(
        self, state: TrainState, phases: Sequence[Phase], *, restored: bool
    ) -> tuple[TrainState, bool]:
        """Train like `run`, but raise Diverged instead of rolling back.

        Args:
          state: see `run`.
          phases: see `run`.
          restored: whether the state is the result of a rollback. If so, it is saved first.
        """
        step = self._saved = self.ledger.step = int(state.step)
        total = phases[-1].end
        self._window = ReportWindow(step, began=time.perf_counter())
        if restored:
            phase = next(phase for phase in phases if step <= phase.end)
            if self._between_steps(state, step, phase, total, restored=True):
                return state, False
            self.checkpointer.raise_if_failed(wait=True)
        if self._begins_with_evaluation(step, total):
            phase = next(phase for phase in phases if step <= phase.end)
            try:
                self._evaluate(state, step, phase, stoppable=True)
            except StopRequested:
                return state, False
        if self.early and self.early.enough:
            return state, True
        if step and self._after_save_due(step, total) and not self._call_after_save(step):
            return state, False
        self._window = ReportWindow(step, began=time.perf_counter())
        with BatchWaits(self.ledger) as waits:
            ended = self._run_phases(state, step, phases, waits)
        self.ledger.switch(OTHER)
        return ended

    def _run_phases(
        self, state: TrainState, step: int, phases: Sequence[Phase], waits: BatchWaits
    ) -> tuple[TrainState, bool]:
        """Train from `step` to the end of the last phase; see `run`."""
        total = phases[-1].end
        for phase in phases:
            if step >= phase.end:
                continue
            if step == phase.first_step:
                # Start a new window, since losses on the batches of another phase are not
                # comparable.
                state = with_guard(state, steps=0)
            rows = local_rows(self.mesh, phase.batch_size)
            waits.new_program()
            with phase.batches(step - phase.first_step) as batches:
                while step < phase.end:
                    # Take the next batch, dispatch the step, and only then read the metrics of
                    # the previous step, so that the device never waits for the host.
                    waits.begin(self._window.running)
                    local = self._next_batch(batches, state, step)
                    if local is None:
                        return state, False
                    batch = to_global(local, self.mesh, rows, phase.batch_size)
                    self._window.stall_seconds += waits.end()
                    inputs = self._inputs(step)
                    if self.profiler:
                        self.profiler.before_step(state)
                    with jax.profiler.StepTraceAnnotation("step", step_num=step + 1):
                        state, metrics = phase.train_step(state, batch, inputs)
                    waits.dispatched()
                    self._state = state
                    self._report_pending()
                    self.checkpointer.raise_if_failed()
                    step += 1
                    positions = batch["token_ids"].size if "token_ids" in batch else 0
                    self._window.dispatched(step, metrics, phase.flops(local), positions)
                    # Between two steps, evaluate, save, and stop if requested, in that order. The
                    # state has been trained on every batch before `step` exactly once, apart from
                    # skipped batches.
                    if self._between_steps(state, step, phase, total):
                        return state, False
                    if self.early and self.early.enough:
                        return state, True
        return state, True

    def _rolled_back(self, diverged: Diverged, phases: Sequence[Phase]) -> TrainState:
        """Return the state to continue with after a divergence.

        Raises:
          TrainingDiverged: the run has no rollbacks left.
        """
        assert self.recovery is not None and self._state is not None
        phase = next(phase for phase in phases if diverged.last < phase.end)
        with self.ledger.during(RESTORE):
            details = "" if diverged.finite else self._diagnosed(phase, diverged.last)
            state, report = self.recovery.roll_back(self._state, diverged, details)
        self.ledger.rewind(int(report.values["from_step"]))
        if self.reporter:
            self.reporter.divergence(report)
        from_this_phase = report.values["from_step"] >= phase.first_step
        return state if from_this_phase else with_guard(state, steps=0)

    def _diagnosed(self, phase: Phase, step: int) -> str:
        """Repeat the step on the batch with index `step`, and return where values are not finite.

        The guard has not applied any update since this batch, so the parameters are the same.
        """
        if phase.diagnose is None:
            return ""
        assert self._state is not None
        rows = local_rows(self.mesh, phase.batch_size)
        with phase.batches(step - phase.first_step) as batches:
            batch = to_global(next(batches), self.mesh, rows, phase.batch_size)
        return phase.diagnose(self._state.params, batch, step, self._inputs(step))

    def _inputs(self, step: int) -> StepInputs:
        rate = np.float32(0.0) if self.learning_rates is None else self.learning_rates[step]
        return StepInputs(np.uint32(self.seed), rate)

    def _next_batch(
        self, batches: Iterator[HostBatch], state: TrainState, step: int
    ) -> HostBatch | None:
        """Return the next batch, or None if the run was asked to stop while waiting for it.

        Before the method returns None or raises an error, it saves the state, which an error in the
        data does not affect.
        """
        try:
            return next(batches)
        except Exception as error:
            self._save_before_error(state, step, error)
            if isinstance(error, StopRequested):
                return None
            raise

    def _save(self, state: TrainState, step: int, *, interim: bool) -> None:
        """Save the state; `interim` is True if an uninterrupted run would not save it."""
        self.ledger.flush()  # a run that resumes from here counts only the steps up to this entry
        with self.ledger.during(SAVE):
            with self._rolling_back(step):
                require_finite_state(state, self.mesh)
            if self.recovery is None:
                self.checkpointer.save(state, self._metrics)
            else:
                targets = self.recovery.targets(state)
                self.checkpointer.save(
                    state, self._metrics, rollback_targets=targets, interim=interim
                )
        self._saved = step

    @contextmanager
    def _rolling_back(self, step: int) -> Iterator[None]:
        """Treat a state as diverged if its values or its held-out metrics are not finite."""
        try:
            yield
        except TrainingDiverged as error:
            if self.recovery is None:
                raise
            raise Diverged(error.problem, step - 1, step - 1, finite=True) from error

    def _save_before_error(self, state: TrainState, step: int, error: Exception) -> None:
        """Save the state before `error` ends the run.

        If saving fails too, this logs `error` and raises the error from saving instead.
        """
        # With multiple processes, the other processes have already begun the next step, so they
        # cannot take part in the save.
        if step <= self._saved or jax.process_count() > 1:
            return
        try:
            self._report_pending(force=True)
            self._save(state, step, interim=True)
            self.checkpointer.raise_if_failed(wait=True)
        except (CheckpointNotSaved, TrainingDiverged):
            if not isinstance(error, StopRequested):
                logger.error("%s", error)
            raise
        logger.info("saved step %s; run the same command to resume", f"{step:,}")

    def _begins_with_evaluation(self, step: int, total: int) -> bool:
        """Return whether the first state should be evaluated before the next step.

        This is the case for the initial parameters with `evaluate_first`. It is also the case for a
        checkpoint that should have been evaluated but was not. This happens if the run was stopped
        when an evaluation was due, or if its number of steps was later lowered to the checkpoint's
        step.
        """
        if step == 0:
            return self.evaluate_first and self.intervals.evaluate > 0
        due = self._evaluation_due(step, total)
        return due and not self.checkpointer.latest_was_evaluated()

    def _evaluation_due(self, step: int, total: int) -> bool:
        return self.intervals.evaluates(step) or (step == total and self.intervals.evaluate > 0)

    def _between_steps(
        self, state: TrainState, step: int, phase: Phase, total: int, *, restored: bool = False
    ) -> bool:
        """Evaluate and save if this is due or the state was restored; return whether to stop."""
        # If the run diverged when it was asked to stop, it stops after the rollback.
        self._stopping = step < total and (self._stopping or self.stop.stop_now())
        stopping, last = self._stopping, step == total
        evaluated = self._evaluation_due(step, total)
        following = self._after_save_due(step, total)
        regular = step % self.intervals.save == 0 or last or restored or following
        regular = regular or (evaluated and self.intervals.save_evaluated)
        evaluating, following = evaluated and not stopping, following and not stopping
        saving = regular or stopping
        self._metrics = None
        if not (evaluating or saving):
            return False
        # Never save a state whose metrics are not finite. Pending metrics are reported before a
        # checkpoint is saved, so that a run that resumes from it makes the same reports.
        self._report_pending(force=saving)
        self.ledger.switch(OTHER)
        began = time.perf_counter()
        if evaluating:
            try:
                stoppable = not last or self.early is not None
                with self._rolling_back(step):
                    self._metrics = self._evaluate(state, step, phase, stoppable=stoppable)
            except StopRequested:
                saving = stopping = self._stopping = True
                following = False
                self._report_pending(force=True)
            except (TrainingDiverged, Diverged):
                raise
            except Exception as error:
                self._save_before_error(state, step, error)
                raise
        if saving:
            self._save(state, step, interim=not regular)
        if following and not self._call_after_save(step):
            stopping = True
        self._window.excluded_seconds += time.perf_counter() - began
        return stopping

    def _after_save_due(self, step: int, total: int) -> bool:
        due = self._evaluation_due(step, total)
        return due and self.after_save is not None and self.after_save.due(step)

    def _call_after_save(self, step: int) -> bool:
        """Wait until the checkpoint at `step` is on disk, then call `after_save` with its step."""
        assert self.after_save is not None
        with self.ledger.during(SAVE):
            self.checkpointer.raise_if_failed(wait=True)
        with self.ledger.during(DOWNSTREAM):
            return self.after_save(step)

    def _evaluate(
        self, state: TrainState, step: int, phase: Phase, *, stoppable: bool
    ) -> dict[str, float]:
        """Evaluate the state on held-out data, and report and return the metrics.

        Args:
          state: the state to evaluate.
          step: the state's step.
          phase: the phase whose `evaluate` is used.
          stoppable: whether a request to stop ends the evaluation. The last evaluation of a run
            must not be stopped, since the final state could not be saved again with its metrics. A
            run with `early` is an exception: it takes the metrics from the log, so it can repeat
            the evaluation when it resumes.
        """
        assert phase.evaluate is not None
        after_batch = self.stop.raise_if_stopping if stoppable else to_the_end
        with self.ledger.during(EVALUATION):
            metrics = dict(phase.evaluate(state.params, after_batch))
            if average := average_of(state):
                of_average = phase.evaluate(average, after_batch)
                metrics |= {f"{AVERAGE_PREFIX}{name}": value for name, value in of_average.items()}
            require_finite_metrics(
                step, {f"held-out {name}": value for name, value in metrics.items()}
            )
            if self.reporter:
                self.reporter.evaluation(step, metrics)
        if self.early:
            self.early.observe(step, metrics)
        return metrics

    def _report_pending(self, *, force: bool = False) -> None:
        """Read the previous step's metrics; report them if a report is due or `force` is set."""
        window = self._window
        outcome, diverged = None, None
        if window.pending is not None:
            outcome = window.collect()
            self._call_on_step(window, outcome)
        if outcome is not None and outcome.skipped:
            assert self.recovery is not None
            diverged = Diverged.found_in(outcome, self.recovery.config)
            if self.reporter:
                self.reporter.divergence(outcome.report())
        step = self.ledger.step = window.last_step
        due = step % self.intervals.report == 0
        if step == window.first_step or not (due or force or diverged):
            return
        if self.reporter:
            means, sums, rates = window.totals.means(), window.totals.sums(), self.learning_rates
            real_tokens = sums.get("tokens", 0.0)
            means.pop("tokens", None)
            self.ledger.trained(tokens=real_tokens, positions=window.positions, flops=window.flops)
            self.reporter.train(
                step,
                means,
                learning_rate=None if rates is None else float(rates[step - 1]),
                real_tokens=real_tokens,
                flops=window.flops,
                seconds=window.collected - window.began - window.excluded_seconds,
                stall_seconds=window.stall_seconds,
                steps=step - window.first_step,
            )
        # Start the new window at the time when the last step finished, because the next step was
        # already running during the report.
        self._window = ReportWindow(step, began=window.collected)
        if diverged is not None:
            raise diverged

    def _call_on_step(self, window: ReportWindow, outcome: StepOutcome | None) -> None:
        if self.on_step is None:
            return
        values = {
            name: float(x.sum) / (float(x.weight) or 1.0) for name, x in window.newest.items()
        }
        if outcome is not None:
            values["skipped"] = float(outcome.skipped)
        self.on_step(window.last_step, values)
