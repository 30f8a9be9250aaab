"""Define the reports that a callback receives: messages, training progress and evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

# The prefixes of metrics that are measured on texts and on minimal pairs.
TEXT_PREFIX, PAIRS_PREFIX = "text_", "pairs_"
PAIRS_ACCURACY = f"{PAIRS_PREFIX}accuracy"
AVERAGE_PREFIX = "average_"  # for metrics of the averaged parameters

# The metrics shown in a progress line, in order, with their short names.
_PROGRESS_METRICS = {
    "loss": "loss",
    "mlm_accuracy": "mlm",
    "nsp_accuracy": "nsp",
    "sop_accuracy": "sop",
    "replaced_accuracy": "replaced",
    "replaced_recall": "recall",
    "accuracy": "accuracy",
}


@dataclass(frozen=True)
class Message:
    """A text message about a run; `str()` returns the text.

    Attributes:
      text: one or more lines.
    """

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TrainReport:
    """The training progress since the previous report; `str()` returns a progress line.

    Attributes:
      step: the number of optimizer steps since the start of the run.
      total_steps: the number of optimizer steps in the whole run.
      metrics: the mean of each metric over the interval.
      learning_rate: the learning rate in the last step; None if the optimizer has a schedule of its
        own.
      tokens_per_second: the number of non-padding tokens per second, over all devices; 0 if the
        task does not count them.
      utilization: the model FLOP/s as a fraction of the devices' peak; None if the peak is unknown.
      stall: the fraction of the interval during which the devices had nothing to do because the
        loop was waiting for a batch.
      seconds_left: the estimated time left until the end of the run; None if still unknown.
      seconds: the wall-clock time of the interval.
      steps: the number of steps in the interval.
      compiling: whether the interval includes the compilation of the step.
      goodput: the fraction of the run's wall-clock time, over all of its starts, that was spent on
        training steps; None if it is not recorded.
    """

    step: int
    total_steps: int
    metrics: Mapping[str, float]
    learning_rate: float | None
    tokens_per_second: float
    utilization: float | None
    stall: float
    seconds_left: float | None
    seconds: float
    steps: int
    compiling: bool
    goodput: float | None = None

    def __str__(self) -> str:
        width = len(f"{self.total_steps:,}")
        parts = [f"step {self.step:>{width},}/{self.total_steps:,}"]
        parts += [
            f"{short} {format_metric(name, self.metrics[name])}"
            for name, short in _PROGRESS_METRICS.items()
            if name in self.metrics
        ]
        if self.learning_rate is not None:
            parts.append(f"lr {self.learning_rate:.2e}")
        if self.tokens_per_second:
            parts.append(f"{format_count(self.tokens_per_second)} tok/s")
        if self.utilization is not None:
            parts.append(f"MFU {self.utilization:.1%}")
        parts.append(f"stall {self.stall:.1%}")
        if self.goodput is not None:
            parts.append(f"goodput {self.goodput:.1%}")
        left = "-" if self.seconds_left is None else format_duration(self.seconds_left)
        parts.append(f"ETA {left}")
        return "  ".join(parts) + "  (with compilation)" * self.compiling


@dataclass(frozen=True)
class EvaluationReport:
    """Metrics on the held-out set after a step; `str()` formats them as one or two lines.

    The second line contains any metrics on texts and on all minimal pairs, but not the metrics on
    individual phenomena.

    Attributes:
      step: the number of optimizer steps since the start of the run; 0 for the parameters that the
        run starts from.
      metrics: the metrics, keyed by name.
    """

    step: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        others = {name: x for name, x in self.metrics.items() if is_on_other_data(name)}
        held_out = {name: x for name, x in self.metrics.items() if name not in others}
        when = f"after step {self.step:,}" if self.step else "before the first step"
        lines = [f"held out, {when}:  {_formatted(held_out)}"]
        others = {name: x for name, x in others.items() if not phenomenon_of(name)}
        return "\n".join([*lines, f"  {_formatted(others)}"] if others else lines)


@dataclass(frozen=True)
class DivergenceReport:
    """A step that was skipped, or a rollback; `str()` describes it in a sentence.

    Attributes:
      kind: "skip" for a single step; "rollback" for a rollback, which skips all steps since the
        checkpoint.
      step: the number of steps since the start of the run, including the skipped ones.
      values: the values to log, keyed by name.
      text: the description.
    """

    kind: Literal["skip", "rollback"]
    step: int
    values: Mapping[str, float]
    text: str

    def __str__(self) -> str:
        return self.text


Report = Message | TrainReport | EvaluationReport | DivergenceReport
OnReport = Callable[[Report], None]


def is_on_other_data(name: str) -> bool:
    """Return whether a metric was measured on a text or on minimal pairs."""
    return name.removeprefix(AVERAGE_PREFIX).startswith((TEXT_PREFIX, PAIRS_PREFIX))


def phenomenon_of(name: str) -> str:
    """Return the phenomenon that an accuracy was measured on, or "" for any other metric."""
    name = name.removeprefix(AVERAGE_PREFIX)
    if not name.startswith(PAIRS_PREFIX) or name == PAIRS_ACCURACY:
        return ""
    return name.removeprefix(PAIRS_PREFIX).removesuffix("_accuracy")


def _formatted(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {format_metric(name, x)}" for name, x in metrics.items())


def both_of(first: OnReport, second: OnReport) -> OnReport:
    """Return a callback that passes every report to two others."""

    def on_report(report: Report) -> None:
        first(report)
        second(report)

    return on_report


def discard(report: Report) -> None:
    """Ignore a report."""


def format_metric(name: str, value: float) -> str:
    """Format an accuracy as a percentage, and any other metric as a decimal number."""
    if name.endswith("accuracy"):
        return f"{value:.1%}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def format_count(value: float) -> str:
    """Format a number with three digits and, if it is large, a unit letter.

    >>> [format_count(n) for n in (7.25, 812, 18_400, 607_000, 4.1e6)]
    ['7.25', '812', '18.4k', '607k', '4.1M']
    """
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            return f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Format a duration in its two largest units.

    >>> [format_duration(s) for s in (4.2, 252, 7_500, 400_000)]
    ['4s', '4m 12s', '2h 05m', '4d 15h']
    """
    whole = math.ceil(seconds) if seconds < 1 else round(seconds)
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if days:
        return f"{days}d {hours % 24:02}h"
    if hours:
        return f"{hours}h {minutes % 60:02}m"
    return f"{minutes}m {whole % 60:02}s" if minutes else f"{whole}s"
