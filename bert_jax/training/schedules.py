"""Define the learning-rate schedules that follow the warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optax

ScheduleName = Literal["linear", "cosine", "constant", "inverse_sqrt"]


def require_finite(field: str, value: float) -> None:
    """Raise ValueError for a setting that is negative, infinite or NaN."""
    if not 0 <= value < math.inf:
        raise ValueError(f"optimizer.{field}={value}: must be 0 or more and finite.")


@dataclass(frozen=True)
class Linear:
    """Linear decay that would reach `end_learning_rate` one step after the end of the run."""

    end_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        require_finite("end_learning_rate", self.end_learning_rate)

    def build(self, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
        """Return the rate as a function of the number of steps since the warm-up."""
        return optax.linear_schedule(peak, self.end_learning_rate, decay_steps)


@dataclass(frozen=True)
class Cosine:
    """Cosine decay that would reach `end_learning_rate` one step after the end of the run."""

    end_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        require_finite("end_learning_rate", self.end_learning_rate)

    def build(self, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
        """Return the rate as a function of the number of steps since the warm-up."""
        alpha = self.end_learning_rate / peak if peak else 0.0
        return optax.cosine_decay_schedule(peak, decay_steps, alpha=alpha)


@dataclass(frozen=True)
class Constant:
    """The peak learning rate in every step."""

    def build(self, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
        """Return the rate as a function of the number of steps since the warm-up."""
        return optax.constant_schedule(peak)


@dataclass(frozen=True)
class InverseSqrt:
    """Decay in proportion to 1 / sqrt(step): peak x sqrt(warmup / step)."""

    def build(self, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
        """Return the rate as a function of the number of steps since the warm-up.

        The warm-up must have at least one step.
        """

        def after(step: Any) -> Any:
            return peak * (warmup / (warmup + step)) ** 0.5

        return after


Schedule = Linear | Cosine | Constant | InverseSqrt
SCHEDULES: Mapping[ScheduleName, type[Schedule]] = {
    "linear": Linear,
    "cosine": Cosine,
    "constant": Constant,
    "inverse_sqrt": InverseSqrt,
}
