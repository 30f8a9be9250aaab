"""Reports of a run, passed to a callback: messages, training progress and evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bert_jax.training.progress import format_count, format_duration, format_metric

# Metrics that a progress line shows, in this order, with their short names.
_SHOWN = {
    "loss": "loss",
    "mlm_accuracy": "mlm",
    "nsp_accuracy": "nsp",
    "sop_accuracy": "sop",
    "accuracy": "accuracy",
}


@dataclass(frozen=True)
class Message:
    """Text about a run, of one or more lines; `str()` returns it."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class TrainReport:
    """The training progress since the previous report; `str()` returns a progress line.

    step: number of optimizer steps done in the whole run, out of `total_steps`.
    metrics: means over the interval.
    learning_rate: of the last step.
    tokens_per_second: tokens that are not padding, over all devices.
    utilization: model FLOP/s as a fraction of the devices' peak; None if the peak is unknown.
    stall: fraction of the interval in which the loop waited for batches.
    seconds_left: estimated time to the end of the run; None if not known yet.
    seconds: length of the interval.
    steps: number of steps in the interval.
    compiling: whether the interval includes the compilation of the step.
    """

    step: int
    total_steps: int
    metrics: Mapping[str, float]
    learning_rate: float
    tokens_per_second: float
    utilization: float | None
    stall: float
    seconds_left: float | None
    seconds: float
    steps: int
    compiling: bool

    def __str__(self) -> str:
        width = len(f"{self.total_steps:,}")
        parts = [f"step {self.step:>{width},}/{self.total_steps:,}"]
        parts += [
            f"{short} {format_metric(name, self.metrics[name])}"
            for name, short in _SHOWN.items()
            if name in self.metrics
        ]
        parts.append(f"lr {self.learning_rate:.2e}")
        parts.append(f"{format_count(self.tokens_per_second)} tok/s")
        if self.utilization is not None:
            parts.append(f"MFU {self.utilization:.1%}")
        parts.append(f"stall {self.stall:.1%}")
        left = "-" if self.seconds_left is None else format_duration(self.seconds_left)
        parts.append(f"ETA {left}")
        return "  ".join(parts) + "  (with compilation)" * self.compiling


@dataclass(frozen=True)
class EvaluationReport:
    """The metrics of the held-out set after a step; `str()` returns them in one line."""

    step: int
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        shown = "  ".join(f"{name} {format_metric(name, x)}" for name, x in self.metrics.items())
        return f"held out, after step {self.step:,}:  {shown}"


Report = Message | TrainReport | EvaluationReport
OnReport = Callable[[Report], None]


def discard(report: Report) -> None:
    """Ignore a report."""
