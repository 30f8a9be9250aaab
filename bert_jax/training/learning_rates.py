"""Compute and describe the learning rate of every step of a run."""

from __future__ import annotations

import math
from typing import assert_never

import jax
import numpy as np
import optax

from bert_jax.training.optimizer import OptimizerConfig

MAX_STEPS = 2**31 - 1  # the training state's step counter is an int32
_RATES_AT_ONCE = 1 << 16


def make_schedule(config: OptimizerConfig, total_steps: int) -> optax.Schedule:
    """Return the learning rate as a function of the step.

    The steps of the decay are counted from the end of the warm-up.

    Raises:
      ValueError: the warm-up and the decay together are longer than the run, or the run has more
        than `MAX_STEPS` steps.
    """
    if total_steps > MAX_STEPS:
        raise ValueError(
            f"the run has {total_steps:,} steps; expected at most {MAX_STEPS:,}. Lower "
            "phases.*.num_steps, or num_epochs for a fine-tuning run."
        )
    peak, warmup = config.peak_learning_rate, _warmup(config, total_steps)
    if warmup > total_steps:
        raise ValueError(
            f"optimizer.warmup_steps={warmup} is more than the run's {total_steps} steps. "
            "Lower it (10% of the steps is typical for short runs)."
        )
    after = config.decay.build(peak, warmup, max(total_steps - warmup, 1))
    # The rate in step n of the warm-up is peak x (n + 1) / (warmup + 1), so it does not start at 0.
    start = peak / (warmup + 1)
    rise = optax.linear_schedule(start, peak, warmup)
    return optax.join_schedules([rise, after], [warmup]) if warmup else after


def describe_optimizer(config: OptimizerConfig, total_steps: int) -> str:
    """Describe the optimizer, its peak learning rates and its schedule in one line.

    Args:
      config: the optimizer.
      total_steps: the number of steps in the run, which is long enough for the schedule.
    """
    peak, warmup = config.peak_learning_rate, _warmup(config, total_steps)
    rates = f"{config.name} at {peak:g}"
    if config.name == "muon":
        rates += (
            f" for the matrices in the layers, adamw at {peak * config.adam_rate_factor:g} for "
            "all other parameters"
        )
    match config.schedule:
        case "linear" | "cosine":
            after = f"{config.schedule} decay to {config.end_learning_rate:g}"
        case "constant":
            after = "constant learning rate"
        case "inverse_sqrt":
            after = "inverse square-root decay"
        case "wsd":
            begin = config.decay_start(total_steps)
            assert begin is not None, "this schedule has a decay"
            after = (
                f"constant learning rate, then {config.decay_shape} decay to "
                f"{config.end_learning_rate:g} over the last {_steps(total_steps - begin)}"
            )
        case _:
            assert_never(config.schedule)
    rise = f"{_steps(warmup)} of warm-up, " if warmup else ""
    return f"{rates}; {rise}{after}"


def _steps(number: int) -> str:
    return "1 step" if number == 1 else f"{number:,} steps"


def _warmup(config: OptimizerConfig, total_steps: int) -> int:
    return config.warmup_steps or math.ceil(config.warmup_fraction * total_steps)


class LearningRates:
    """The learning rate for every step of a run, computed in blocks of steps.

    Storing the rates for all 2^31 steps of the longest possible run would take 8 GiB.
    """

    def __init__(self, config: OptimizerConfig, total_steps: int):
        """Set up the schedule; see `make_schedule` for the ValueErrors that it may raise."""
        self._compute = jax.jit(jax.vmap(make_schedule(config, total_steps)))
        self._total_steps = total_steps
        self._first, self._rates = 0, np.empty(0, np.float32)

    def __len__(self) -> int:
        return self._total_steps

    def __getitem__(self, step: int) -> np.float32:
        """Return the learning rate for a step; raise IndexError if the run has no such step."""
        if not 0 <= step < self._total_steps:
            raise IndexError(f"step {step} is not one of the run's {self._total_steps} steps")
        if not self._first <= step < self._first + len(self._rates):
            size = min(self._total_steps, _RATES_AT_ONCE)
            self._first = step // size * size
            steps = np.arange(self._first, self._first + size, dtype=np.int64)
            self._rates = np.asarray(self._compute(np.minimum(steps, MAX_STEPS).astype(np.int32)))
        return self._rates[step - self._first]
