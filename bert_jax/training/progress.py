"""Estimate the time left in a run, and format metrics, counts and durations."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence

_WINDOW = 50  # reports the ETA looks back over, long enough to hold evaluations and checkpoints


class Progress:
    """Estimates the time left from the wall clock between reports.

    The first report only starts the clock: its interval holds the compilation of the step. All that
    later intervals hold (evaluation, checkpoints) is part of what the rest of the run will cost.

    Args:
      steps_and_costs: of each phase of the run, in order, its steps and what one of them costs, in
        any unit, to which its time is in proportion: one of 512 tokens takes longer than one of
        128.
      clock: seconds from any origin.
    """

    def __init__(
        self,
        steps_and_costs: Sequence[tuple[int, float]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps_and_costs = steps_and_costs
        self._whole = sum(steps * each for steps, each in steps_and_costs)
        self._clock = clock
        self._reports: deque[tuple[int, float]] = deque(maxlen=_WINDOW)

    def seconds_left(self, step: int) -> float | None:
        """Note that `step` is done now and return the seconds to the last one, None if unknown."""
        self._reports.append((step, self._clock()))
        (first_step, first_time), (_, now) = self._reports[0], self._reports[-1]
        if step == first_step:
            return None
        cost = self._cost(step)
        return (now - first_time) / (cost - self._cost(first_step)) * (self._whole - cost)

    def _cost(self, steps: int) -> float:
        """Of the first `steps`."""
        cost, start = 0.0, 0
        for count, each in self._steps_and_costs:
            cost += each * min(max(steps - start, 0), count)
            start += count
        return cost


def format_metric(name: str, value: float) -> str:
    """Write an accuracy as a percentage and anything else with four digits."""
    if name.endswith("accuracy"):
        return f"{value:.1%}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"


def format_count(value: float) -> str:
    """Write a large number in three digits and a letter.

    >>> [format_count(n) for n in (7.25, 812, 18_400, 607_000, 4.1e6)]
    ['7.25', '812', '18.4k', '607k', '4.1M']
    """
    for unit in ("", "k", "M", "G"):
        if abs(value) < 999.5 or unit == "G":
            return f"{value:.3g}{unit}"
        value /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """Write a time in its two largest units.

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
