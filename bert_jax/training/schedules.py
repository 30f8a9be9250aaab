"""Define the learning-rate schedules that follow the warm-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, assert_never

import jax.numpy as jnp
import optax

ScheduleName = Literal["linear", "cosine", "constant", "inverse_sqrt", "wsd"]
DecayShape = Literal["linear", "1-sqrt"]


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


@dataclass(frozen=True)
class WarmupStableDecay:
    """The peak rate until the last steps of the run, then a decay (Zhai et al. 2022, section 3.5).

    The decay would reach `end_learning_rate` one step after the end of the run. The rates before
    the decay do not depend on the length of the run, so several decays can start from the same
    stable phase.

    Attributes:
      decay_steps: the number of steps in the decay.
      decay_fraction: the number of steps in the decay as a fraction of the run's steps; used if
        `decay_steps` is 0.
      decay_shape: "linear", or "1-sqrt" for a decay in proportion to 1 - sqrt(x), where x is the
        completed fraction of the decay (Hägele et al. 2024, section 3).
      end_learning_rate: the final learning rate.
    """

    decay_steps: int = 0
    decay_fraction: float = 0.0
    decay_shape: DecayShape = "linear"
    end_learning_rate: float = 0.0

    def __post_init__(self) -> None:
        require_finite("end_learning_rate", self.end_learning_rate)
        if self.decay_steps < 0:
            raise ValueError(f"optimizer.decay_steps={self.decay_steps}: must be 0 or more")
        if not 0.0 <= self.decay_fraction <= 1.0:
            raise ValueError(
                f"optimizer.decay_fraction={self.decay_fraction}: must be between 0 and 1"
            )
        if self.decay_steps and self.decay_fraction:
            raise ValueError(
                f"optimizer.decay_steps={self.decay_steps} and decay_fraction="
                f"{self.decay_fraction} both set the length of the decay. Set one of them to 0."
            )
        if not (self.decay_steps or self.decay_fraction):
            raise ValueError(
                "optimizer.schedule='wsd' needs decay_steps >= 1 or a decay_fraction, such as 0.2."
            )

    def length(self, total_steps: int) -> int:
        """Return the number of steps in the decay of a run with `total_steps` steps."""
        return self.decay_steps or math.ceil(self.decay_fraction * total_steps)

    def build(self, peak: float, warmup: int, decay_steps: int) -> optax.Schedule:
        """Return the rate as a function of the number of steps since the warm-up.

        Raises:
          ValueError: the decay would begin before the end of the warm-up.
        """
        length = self.length(warmup + decay_steps)
        if length > decay_steps:
            raise ValueError(
                f"optimizer.{self._key}: the decay of {length} steps would begin during the "
                f"warm-up, since only {decay_steps} steps remain after it. Shorten the decay or "
                "the warm-up."
            )
        begin, end = decay_steps - length, self.end_learning_rate

        def after(step: Any) -> Any:
            done = jnp.clip((step - begin) / length, 0.0, 1.0)
            return jnp.where(step <= begin, peak, end + (peak - end) * self._left(done))

        return after

    @property
    def _key(self) -> str:
        if self.decay_steps:
            return f"decay_steps={self.decay_steps}"
        return f"decay_fraction={self.decay_fraction}"

    def _left(self, done: Any) -> Any:
        """Return the fraction of the decay that remains after the fraction `done` of its steps."""
        match self.decay_shape:
            case "linear":
                return 1 - done
            case "1-sqrt":
                return 1 - jnp.sqrt(done)
            case _:
                assert_never(self.decay_shape)


Schedule = Linear | Cosine | Constant | InverseSqrt | WarmupStableDecay
SCHEDULES: Mapping[ScheduleName, type[Schedule]] = {
    "linear": Linear,
    "cosine": Cosine,
    "constant": Constant,
    "inverse_sqrt": InverseSqrt,
    "wsd": WarmupStableDecay,
}
