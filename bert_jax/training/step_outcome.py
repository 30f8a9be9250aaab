"""Read the decision of a guarded train step on the host, and describe it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from bert_jax.tasks.task import Metrics
from bert_jax.training.divergence import VERDICT_METRICS, DivergenceConfig
from bert_jax.training.reports import DivergenceReport


@dataclass(frozen=True)
class StepOutcome:
    """The loss and the gradient norm of a guarded step, and the decision on it.

    Attributes:
      step: the number of steps since the start of the run, including this one.
      loss: the loss.
      gradient_norm: the norm of the gradient before clipping.
      skipped: whether the update was not applied.
      outliers: the number of consecutive outliers, including this step; 0 for a normal step.
      loss_limit: the highest loss of a normal step; infinite until the window is full.
      norm_limit: the highest gradient norm of a normal step.
    """

    step: int
    loss: float
    gradient_norm: float
    skipped: bool
    outliers: int
    loss_limit: float
    norm_limit: float

    @property
    def batch(self) -> int:
        """The index of the step's batch, counted from 0 over the whole run."""
        return self.step - 1

    @property
    def finite(self) -> bool:
        """Whether the loss and the gradient norm are finite."""
        return math.isfinite(self.loss) and math.isfinite(self.gradient_norm)

    @property
    def problem(self) -> str:
        """A phrase that explains why the step was skipped."""
        parts = []
        for name, value, limit in (
            ("loss", self.loss, self.loss_limit),
            ("gradient norm", self.gradient_norm, self.norm_limit),
        ):
            if not math.isfinite(value):
                parts.append(f"its {name} is {value}")
            elif value > limit:
                parts.append(f"its {name} of {value:.4g} exceeds the limit of {limit:.4g}")
        return " and ".join(parts)

    def report(self) -> DivergenceReport:
        """Return the report of a skipped step."""
        values = {
            "loss": self.loss,
            "gradient_norm": self.gradient_norm,
            "loss_limit": self.loss_limit,
            "gradient_norm_limit": self.norm_limit,
            "batch": self.batch,
        }
        text = f"step {self.step:,}: skipped batch {self.batch}, since {self.problem}"
        return DivergenceReport("skip", self.step, values, text)


def take_outcome(step: int, metrics: Metrics) -> StepOutcome | None:
    """Remove the verdict from a step's metrics, which are on the host, and return the outcome.

    The result is None if the step was not guarded.
    """
    if not metrics.keys() >= set(VERDICT_METRICS):
        return None
    skipped, outliers, *limits = (float(metrics.pop(name).sum) for name in VERDICT_METRICS)
    loss, norm = (float(metrics[name].sum) for name in ("loss", "gradient_norm"))
    return StepOutcome(step, loss, norm, bool(skipped), int(outliers), *limits)


class Diverged(Exception):
    """A run has diverged and must go back to an earlier state.

    Attributes:
      problem: a description of the problem, as a sentence without its full stop.
      first: the index of the first bad batch. A state that was saved before the step on this batch
        is good.
      last: the index of the last batch whose step is undone.
      finite: whether the losses and gradient norms of all steps up to `last` are finite.
    """

    def __init__(self, problem: str, first: int, last: int, *, finite: bool) -> None:
        super().__init__(problem)
        self.problem, self.first, self.last, self.finite = problem, first, last, finite

    @classmethod
    def found_in(cls, outcome: StepOutcome, config: DivergenceConfig) -> Diverged | None:
        """Return the divergence that a step's outcome amounts to, or None."""
        first = outcome.step - outcome.outliers
        if not outcome.finite:
            return cls(
                f"step {outcome.step:,} (batch {outcome.batch}): {outcome.problem}",
                *(first, outcome.batch),
                finite=False,
            )
        if outcome.outliers > config.max_outliers:
            return cls(
                f"step {outcome.step:,}: batches {first} to {outcome.batch} are "
                f"{outcome.outliers} consecutive outliers (the last: {outcome.problem})",
                *(first, outcome.batch),
                finite=True,
            )
        return None
