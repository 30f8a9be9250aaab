"""Of one kind of answer: how often it was given, was right to give, and both."""

from __future__ import annotations

from typing import NamedTuple


class Counts(NamedTuple):
    """How often it is predicted, is in the gold answers, and is in both."""

    predicted: int
    gold: int
    correct: int

    def scores(self) -> dict[str, float]:
        """precision, recall and f1 as fractions; 0 where one divides by 0."""
        return {
            "precision": self.correct / max(self.predicted, 1),
            "recall": self.correct / max(self.gold, 1),
            "f1": 2 * self.correct / max(self.predicted + self.gold, 1),
        }
