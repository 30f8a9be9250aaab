"""Report a run's progress to a callback, a JSON Lines log, TensorBoard and plotted curves."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, assert_never, cast

from bert_jax.files import writing
from bert_jax.goodput.entries import EndState
from bert_jax.goodput.ledger import Ledger
from bert_jax.local_paths import make_directory
from bert_jax.training.curves import draw_curves
from bert_jax.training.metrics_log import LOG_NAME, MetricsLog, train_scalars
from bert_jax.training.reports import (
    DivergenceReport,
    EvaluationReport,
    Message,
    OnReport,
    Report,
    TrainReport,
)

logger = logging.getLogger(__name__)

CURVES_NAME = "curves.png"
TENSORBOARD_NAME = "tensorboard"
_ETA_WINDOW = 50  # the number of reports; they should span evaluations and checkpoints


class TensorBoard:
    """An event file in `work_dir`/tensorboard; every event is written to disk immediately.

    If the file cannot be written, for example because the disk is full, it is abandoned with a
    single warning, since `metrics.jsonl` has the same values. tensorboardX's own writer is not
    used, because it writes in a thread. If this thread could not write, it would end, and the run
    would wait for it forever.

    Args:
      work_dir: the run's work directory.
      start_step: the step from which the run resumes; TensorBoard hides existing events for later
        steps. If 0, it hides all of them.
      name: the directory in `work_dir`. TensorBoard follows only the newest file in a directory, so
        each process needs a directory of its own.
    """

    def __init__(self, work_dir: Path, start_step: int, name: str = TENSORBOARD_NAME) -> None:
        with _without_torch():
            from tensorboardX.event_file_writer import EventsWriter
            from tensorboardX.proto.event_pb2 import SessionLog

        self._directory = work_dir / name
        self._writer: Any = None
        try:
            with writing(self._directory):
                make_directory(self._directory)
                # A relative path that begins with "gs:" or "s3:" would be treated as a bucket.
                self._writer = EventsWriter(str(self._directory.absolute() / "events"))
        except OSError as error:
            self._give_up(error)
        first_hidden = start_step + 1 if start_step else 0
        self._write(first_hidden, file_version="brain.Event:2")
        self._write(first_hidden, session_log=SessionLog(status=SessionLog.START))

    def __call__(self, report: Report) -> None:
        """Write the scalars of a train or evaluation report; ignore other reports."""
        match report:
            case TrainReport():
                self.add(tagged("train", train_scalars(report)), report.step)
            case EvaluationReport():
                self.add(tagged("held_out", report.metrics), report.step)
            case Message() | DivergenceReport():
                pass
            case _:
                assert_never(report)

    def add(self, values: Mapping[str, float], step: int) -> None:
        """Write scalars under their tags."""
        from tensorboardX.summary import scalar

        for tag, value in values.items():
            self._write(step, summary=scalar(tag, value))

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            try:
                with writing(self._directory):
                    self._writer.close()
            except OSError as error:
                self._give_up(error)

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if self._writer is None:
            return
        try:
            with writing(self._directory):
                self._writer.write_event(Event(step=step, wall_time=time.time(), **content))
                self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s. Training continues without TensorBoard events.", error)
        self._writer = None


@contextmanager
def _without_torch() -> Iterator[None]:
    """Let a `with` block import tensorboardX without PyTorch.

    tensorboardX imports PyTorch if that is installed, which takes two seconds, but needs it only
    for images, histograms and graphs.
    """
    if "torch" in sys.modules:
        yield
        return
    sys.modules["torch"] = cast(ModuleType, None)  # Importing it raises ImportError.
    try:
        yield
    finally:
        del sys.modules["torch"]


def tagged(prefix: str, values: Mapping[str, float]) -> dict[str, float]:
    """Return values whose names begin with a prefix and a slash."""
    return {f"{prefix}/{name}": value for name, value in values.items()}


class Curves:
    """The learning curves in `work_dir`/curves.png, drawn from the log after each evaluation."""

    def __init__(self, work_dir: Path) -> None:
        self._work_dir = work_dir
        self._drawn = False
        self._failed = False

    def __call__(self, report: Report) -> None:
        """Draw the curves after an evaluation report."""
        match report:
            case TrainReport():
                self._drawn = False
            case EvaluationReport():
                self.draw()
            case Message() | DivergenceReport():
                pass
            case _:
                assert_never(report)

    def close(self) -> None:
        """Draw the curves again if they do not include the last steps."""
        if not self._drawn and (self._work_dir / LOG_NAME).is_file():
            self.draw()

    def draw(self) -> None:
        """Draw the curves; log a warning if they cannot be written.

        Raises:
          ValueError: a log is damaged.
        """
        log, curves = self._work_dir / LOG_NAME, self._work_dir / CURVES_NAME
        self._drawn = True
        try:
            draw_curves(log, curves, title=self._work_dir.resolve().name)
        except OSError as error:  # a missing image must not stop the run
            if not self._failed:
                logger.warning("%s. Training continues without the curves.", error)
            self._failed = True


class Progress:
    """Estimates the time left from the wall-clock time between reports.

    The first report only starts the clock, since its interval includes the compilation of the step.
    Later intervals include evaluations and checkpoints, as the rest of the run will.

    Args:
      steps_and_costs: for each phase in order, the number of steps and the cost of one step. Costs
        may be in any unit that is proportional to time; steps with longer sequences cost more.
      clock: returns the time in seconds, measured from any fixed point in time.
    """

    def __init__(
        self,
        steps_and_costs: Sequence[tuple[int, float]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps_and_costs = steps_and_costs
        self._total_cost = sum(steps * cost for steps, cost in steps_and_costs)
        self._clock = clock
        self._reports: deque[tuple[int, float]] = deque(maxlen=_ETA_WINDOW)

    def seconds_left(self, step: int) -> float | None:
        """Record that `step` is done; return the estimated seconds left, or None if unknown."""
        self._reports.append((step, self._clock()))
        (first_step, first_time), (_, now) = self._reports[0], self._reports[-1]
        if step == first_step:
            return None
        cost = self._cost(step)
        return (now - first_time) / (cost - self._cost(first_step)) * (self._total_cost - cost)

    def _cost(self, steps: int) -> float:
        """Return the total cost of the first `steps` steps."""
        cost, start = 0.0, 0
        for count, step_cost in self._steps_and_costs:
            cost += step_cost * min(max(steps - start, 0), count)
            start += count
        return cost


class ReportTracker(Protocol):
    """Receives the reports and the final state of a run; see bert_jax.tracking."""

    def __call__(self, report: Report) -> None:
        """Receive a report."""
        ...

    def close(self, state: EndState) -> None:
        """Receive the final state of the run."""
        ...


class Reporter:
    """Turns the training loop's measurements into reports, and passes them on.

    Reports go to `on_report` and to files in `work_dir`: `metrics.jsonl`, `curves.png` and, if
    `tensorboard` is set, `tensorboard/`. Only process 0 has a reporter.

    Args:
      work_dir: the run's work directory; None to write no files.
      steps_and_costs: for each phase in order, the number of optimizer steps and the cost of one
        step, from which the time left is estimated; see `Progress`.
      start_step: the step from which the run resumes. Entries for later steps are removed from the
        log, and events for later steps are hidden in TensorBoard. If it is 0, this applies to all
        entries and events.
      peak_flops: the peak FLOP/s of all devices together; if None, utilization is not reported.
      tensorboard: whether to write TensorBoard event files.
      on_report: called with every report; None for no callback.
      ledger: accounts for the run's time; None to report no goodput.
      trackers: receive all reports and, from the ledger, the final state of the run.
      clock: returns the time in seconds, measured from any fixed point in time.
    """

    def __init__(
        self,
        work_dir: str | os.PathLike[str] | None,
        steps_and_costs: Sequence[tuple[int, float]],
        *,
        start_step: int,
        peak_flops: float | None,
        tensorboard: bool,
        on_report: OnReport | None = None,
        ledger: Ledger | None = None,
        trackers: Sequence[ReportTracker] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps = sum(steps for steps, _ in steps_and_costs)
        self._peak_flops = peak_flops
        self._progress = Progress(steps_and_costs, clock=clock)
        self._compiling = True
        self._ledger = ledger
        self._trackers = trackers
        self._files: list[MetricsLog | TensorBoard | Curves] = []
        if work_dir is not None:
            directory = Path(work_dir)
            # The curves are drawn from the log, so they come last.
            self._files.append(MetricsLog(directory / LOG_NAME, start_step=start_step))
            if tensorboard:
                self._files.append(TensorBoard(directory, start_step))
            self._files.append(Curves(directory))
        receivers = (on_report, *self._files, *trackers)
        self._receivers = [receive for receive in receivers if receive is not None]

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
        """Report on the optimizer steps since the last report.

        Args:
          step: the number of optimizer steps since the start of the run.
          metrics: the mean of each metric over the interval.
          learning_rate: the learning rate in the last step; None if it is unknown.
          real_tokens: the number of non-padding tokens in the interval, over all devices.
          flops: the model FLOPs in the interval, over all devices.
          seconds: the wall-clock time of the interval.
          stall_seconds: the part of this time during which the devices had nothing to do because
            the loop was waiting for a batch.
          steps: the number of steps in the interval.
        """
        assert steps > 0 and seconds > 0, (steps, seconds)
        peak = self._peak_flops
        report = TrainReport(
            step,
            self._total_steps,
            metrics,
            learning_rate=learning_rate,
            tokens_per_second=real_tokens / seconds,
            utilization=None if peak is None else flops / seconds / peak,
            stall=stall_seconds / seconds,
            seconds_left=self._progress.seconds_left(step),
            seconds=seconds,
            steps=steps,
            compiling=self._compiling,
            goodput=None if self._ledger is None else self._ledger.fraction(),
        )
        self._compiling = False
        self._pass_on(report)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Report metrics on the held-out set after `step` steps."""
        self._pass_on(EvaluationReport(step, metrics))

    def divergence(self, report: DivergenceReport) -> None:
        """Report a skipped step or a rollback."""
        self._pass_on(report)

    def close(self) -> None:
        """Close the files and trackers, and draw the curves if they do not include all steps."""
        state = self._ledger.state if self._ledger is not None else None
        for tracker in self._trackers:
            tracker.close(state or "failed")
        for file in self._files:
            file.close()

    def _pass_on(self, report: Report) -> None:
        for receive in self._receivers:
            receive(report)
