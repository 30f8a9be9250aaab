"""When a run has stopped getting better."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class EarlyStopping:
    """Counts evaluations since the best one.

    metric: higher is better, or lower with `lower_is_better`. patience: how many evaluations in a
    row may be no better than the best.
    """

    metric: str
    patience: int
    lower_is_better: bool = False
    _best: tuple[int, float] | None = field(default=None, init=False)
    _last: int = field(default=-1, init=False)
    _since: int = field(default=0, init=False)

    def observe(self, step: int, metrics: Mapping[str, float]) -> None:
        """Takes in an evaluation; one that is seen already is made again by a run that resumes."""
        if step <= self._last:
            return
        self._last = step
        value = -metrics[self.metric] if self.lower_is_better else metrics[self.metric]
        better = self._best is None or value > self._best[1]
        self._since = 0 if better else self._since + 1
        if self._best is None or value >= self._best[1]:
            self._best = (step, value)

    def observe_all(self, evaluations: Iterable[Mapping[str, float]]) -> None:
        """Takes in the entries of a log, which name their step."""
        for entry in evaluations:
            self.observe(int(entry["step"]), entry)

    @property
    def best_step(self) -> int | None:
        """The step of the best evaluation, the last of equal ones; None before any."""
        return None if self._best is None else self._best[0]

    @property
    def enough(self) -> bool:
        """Whether the run should end; never with a patience of 0."""
        return 0 < self.patience <= self._since
