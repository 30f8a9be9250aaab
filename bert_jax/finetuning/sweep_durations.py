"""Estimate how long the remaining runs of a sweep will take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bert_jax.finetuning.hyperparameters import Hyperparameters
from bert_jax.finetuning.variants import Variant


@dataclass
class Durations:
    """The durations of a sweep's runs.

    An epoch takes about the same time in all runs of a variant except the first, which compiles the
    programs.
    """

    _runs: dict[Variant, list[tuple[float, float]]] = field(default_factory=dict)

    def add(
        self, hyperparameters: Hyperparameters, seconds: float, *, fraction: float = 1.0
    ) -> None:
        """Add the duration of a run that completed this fraction of its epochs."""
        runs = self._runs.setdefault(hyperparameters.variant, [])
        runs.append((hyperparameters.num_epochs * fraction, seconds))

    def seconds_per_epoch(self, variant: Variant) -> float | None:
        """Return the duration of one epoch for a variant, or None if none of its runs has ended."""
        return _mean(self._representative(variant))

    def seconds_left(self, left: Iterable[Hyperparameters]) -> float | None:
        """Estimate how long the remaining runs will take; return None if no run has ended.

        Variants that have no runs yet are assumed to be as fast as the others.
        """
        usual = _mean([run for variant in self._runs for run in self._representative(variant)])
        if usual is None:
            return None
        rates = {variant: self.seconds_per_epoch(variant) for variant in self._runs}
        return sum(each.num_epochs * (rates.get(each.variant) or usual) for each in left)

    def _representative(self, variant: Variant) -> Sequence[tuple[float, float]]:
        """Return all runs of a variant except the first, or the first if it is the only one."""
        runs = self._runs.get(variant, [])
        return runs[1:] or runs


def _mean(runs: Sequence[tuple[float, float]]) -> float | None:
    epochs = sum(epochs for epochs, _ in runs)
    return sum(seconds for _, seconds in runs) / epochs if epochs else None
