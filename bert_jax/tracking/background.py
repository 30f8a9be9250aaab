"""Send a run's metrics from a background thread, which can neither stop nor slow down the run."""

from __future__ import annotations

import importlib.util
import logging
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from bert_jax.goodput.entries import EndState
from bert_jax.tracking.mlflow_tracker import MlflowTracker
from bert_jax.tracking.tracker import (
    TrackedRun,
    Tracker,
    TrackerName,
    read_tracked_ids,
    write_tracked_id,
)
from bert_jax.tracking.wandb_tracker import WandbTracker
from bert_jax.training.metrics_log import train_scalars
from bert_jax.training.reporting import tagged
from bert_jax.training.reports import (
    DivergenceReport,
    EvaluationReport,
    Message,
    Report,
    TrainReport,
)

logger = logging.getLogger(__name__)

_MAX_WAITING = 10_000  # At most this many reports wait to be sent.
_CLOSING_SECONDS = 60.0


def check_trackers(names: Sequence[TrackerName], key: str) -> None:
    """Check that the packages of all trackers are installed.

    Args:
      names: the trackers.
      key: the config key that lists the trackers, for error messages.

    Raises:
      ValueError: a package is missing, or a tracker is listed twice.
    """
    if len(set(names)) < len(names):
        raise ValueError(f"{key}={tuple(names)}: a tracker is listed twice. Remove one of them.")
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ValueError(
                f"{key}={tuple(names)}: the package {name} is not installed. Install it with "
                f"`pip install 'bert_jax[{name}]'`, or remove {name!r} from the key."
            )


def open_trackers(
    names: Sequence[TrackerName], work_dir: Path, config: Mapping[str, Any]
) -> list[BackgroundTracker]:
    """Start tracking a run, continuing the tracked runs of earlier starts if there are any.

    Args:
      names: the trackers.
      work_dir: the run's work directory.
      config: the run's config as plain JSON values.

    Raises:
      ValueError: the file with the IDs of the tracked runs is damaged.
    """
    ids = read_tracked_ids(work_dir)
    return [BackgroundTracker(name, TrackedRun(work_dir, config, ids.get(name))) for name in names]


def _connect(name: TrackerName, tracked: TrackedRun) -> Tracker:
    match name:
        case "wandb":
            return WandbTracker(tracked)
        case "mlflow":
            return MlflowTracker(tracked)
        case _:
            assert_never(name)


class BackgroundTracker:
    """Sends reports to a tracker from a thread, in order.

    If the tracker fails, this logs a warning, and the run continues without the tracker. If the
    tracker hangs, reports are kept up to a maximum number, and `close` waits for at most a minute.

    Args:
      name: the tracker.
      tracked: the run.
      connect: called to create the tracker.
    """

    def __init__(
        self,
        name: TrackerName,
        tracked: TrackedRun,
        connect: Callable[[TrackerName, TrackedRun], Tracker] = _connect,
    ) -> None:
        self._name: TrackerName = name
        self._tracked = tracked
        self._connect = connect
        self._waiting: queue.Queue[tuple[Mapping[str, float], int] | EndState] = queue.Queue(
            _MAX_WAITING
        )
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __call__(self, report: Report) -> None:
        """Send the metrics of a train or evaluation report; ignore other reports."""
        match report:
            case TrainReport():
                values = train_scalars(report)
                if report.goodput is not None:
                    values["goodput"] = report.goodput
                self._put(tagged("train", values), report.step)
            case EvaluationReport():
                self._put(tagged("held_out", report.metrics), report.step)
            case Message() | DivergenceReport():
                pass
            case _:
                assert_never(report)

    def close(self, state: EndState) -> None:
        """Send everything, and record how the run ended."""
        if self._failed.is_set():
            return
        try:
            self._waiting.put(state, timeout=_CLOSING_SECONDS)
        except queue.Full:
            pass
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive():
            self._warn(f"it did not finish within {_CLOSING_SECONDS:.0f} s")

    def _put(self, values: Mapping[str, float], step: int) -> None:
        if self._failed.is_set():
            return
        finite = {name: value for name, value in values.items() if math.isfinite(value)}
        try:
            self._waiting.put_nowait((finite, step))
        except queue.Full:
            self._warn(f"{_MAX_WAITING:,} reports have not been sent")

    def _run(self) -> None:
        try:
            tracker = self._connect(self._name, self._tracked)
            if tracker.tracked_id != self._tracked.tracked_id:
                write_tracked_id(self._tracked.work_dir, self._name, tracker.tracked_id)
            while not isinstance(item := self._waiting.get(), str):
                tracker.log(*item)
            tracker.finish(item)
        except BaseException as error:  # libraries may even exit
            self._warn(f"{type(error).__name__}: {error}")

    def _warn(self, problem: str) -> None:
        if not self._failed.is_set():
            logger.warning("%s: %s. The run continues without it.", self._name, problem)
            self._failed.set()
