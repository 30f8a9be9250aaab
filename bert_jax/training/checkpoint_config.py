"""How often a run saves, and which of its checkpoints stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CheckpointConfig:
    """How often to save and what to keep.

    every_steps: save interval; the last step and a terminated run are saved as well.
    keep_last: newest checkpoints kept. keep_every: also keep every multiple of this step (0: no).
    keep_best: also keep this many best by `best_metric` of the held-out evaluation, for which every
      evaluated state is saved (0: no).
    lower_is_better: the direction of `best_metric`.
    """

    every_steps: int = 1_000
    keep_last: int = 2
    keep_every: int = 0
    keep_best: int = 1
    best_metric: str = "mlm_loss"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        if self.every_steps < 1 or self.keep_last < 1:
            raise ValueError("checkpoint.every_steps and checkpoint.keep_last must be at least 1")
        if self.keep_every < 0 or self.keep_best < 0:
            raise ValueError("checkpoint.keep_every and checkpoint.keep_best must be 0 or more")
        if self.best_metric.endswith("accuracy") and self.lower_is_better:
            raise ValueError(
                f"checkpoint.best_metric={self.best_metric!r} with lower_is_better=True would keep "
                "the worst: set checkpoint.lower_is_better=False"
            )


@dataclass(frozen=True)
class JudgedLater:
    """Keeps, as an Orbax preservation policy, what has no metrics yet at steps that will have."""

    at: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """As Orbax asks, which of them stay."""
        return [not each.metrics and self.at(each.step) for each in checkpoints]
