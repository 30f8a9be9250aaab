"""Define the hyperparameters of a fine-tuning run and the grid of a sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from bert_jax.finetuning.variants import Variant
from bert_jax.validation import check_seed

# The number of runs is limited because the directories of all earlier runs are checked each time a
# run ends.
MAX_RUNS = 10_000
_SWEPT = ("batch_sizes", "learning_rates", "num_epochs")


@dataclass(frozen=True, order=True)
class Combination:
    """A combination of hyperparameters, which a sweep runs with multiple seeds.

    Attributes:
      batch_size: the number of examples per step.
      learning_rate: the peak learning rate.
      num_epochs: the number of epochs.
      variant: the values of the other config keys that the sweep varies.
    """

    batch_size: int
    learning_rate: float
    num_epochs: int
    variant: Variant = field(default=Variant(), kw_only=True)

    def __str__(self) -> str:
        """Return a readable description of the combination."""
        epochs = f"{self.num_epochs} epoch{'s' * (self.num_epochs != 1)}"
        variant = f"{self.variant}, " if self.variant else ""
        return f"{variant}batch {self.batch_size}, learning rate {self.learning_rate:g}, {epochs}"


@dataclass(frozen=True, order=True)
class Hyperparameters(Combination):
    """The hyperparameters that differ between a sweep's runs: a combination and a seed.

    Attributes:
      seed: the seed for parameter initialization, shuffling and dropout.
    """

    seed: int

    def __str__(self) -> str:
        """Return a readable description of the hyperparameters."""
        return f"{super().__str__()}, seed {self.seed}"

    @property
    def combination(self) -> Combination:
        """The hyperparameters without the seed."""
        return Combination(
            self.batch_size, self.learning_rate, self.num_epochs, variant=self.variant
        )

    @property
    def name(self) -> str:
        """The name of the run's directory within a sweep."""
        variant = f"{self.variant.name}_" if self.variant else ""
        return (
            f"{variant}batch{self.batch_size}-rate{self.learning_rate!r}-epochs{self.num_epochs}"
            f"-seed{self.seed}"
        )


@dataclass(frozen=True)
class Grid:
    """A grid of runs: every variant with every combination of hyperparameters and every seed.

    The default batch sizes and epoch counts are from appendix A.3 of Devlin et al. 2019. The
    default learning rates are from section 4.1 of that paper, which, unlike the appendix, includes
    4e-5.

    Attributes:
      batch_sizes: the numbers of examples per step to try.
      learning_rates: the peak learning rates.
      num_epochs: the epoch counts.
      num_seeds: the number of runs per combination; their seeds are consecutive, starting at
        `first_seed`.
      first_seed: the seed of the first run of each combination.
      variants: the values of the other config keys that the sweep varies.
    """

    batch_sizes: tuple[int, ...] = (16, 32)
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    num_epochs: tuple[int, ...] = (2, 3, 4)
    num_seeds: int = 5
    first_seed: int = 0
    variants: tuple[Variant, ...] = (Variant(),)

    def __post_init__(self) -> None:
        for name, values in zip(_SWEPT, self._values, strict=True):
            if not values or not all(0 < value < math.inf for value in values):
                raise ValueError(
                    f"{name}={list(values)}: expected one or more finite values above 0."
                )
            if len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)}: contains duplicates. Remove them.")
        if self.num_seeds < 1:
            raise ValueError(f"num_seeds={self.num_seeds}: must be at least 1.")
        check_seed(self.first_seed, "first_seed")
        if self.first_seed + self.num_seeds > 1 << 32:
            raise ValueError(
                f"num_seeds={self.num_seeds} from first_seed={self.first_seed}: seeds must be at "
                "most 2^32 - 1."
            )
        combinations = len(self.variants) * math.prod(map(len, self._values))
        if (runs := combinations * self.num_seeds) > MAX_RUNS:
            raise ValueError(
                f"the grid has {runs:,} runs ({self.num_seeds:,} seeds per combination); expected "
                f"at most {MAX_RUNS:,}. Use fewer seeds or fewer values."
            )

    @property
    def _values(self) -> tuple[tuple[float, ...], ...]:
        return tuple(getattr(self, name) for name in _SWEPT)

    @property
    def combinations(self) -> list[Combination]:
        """All combinations of hyperparameters."""
        return [
            Combination(batch_size, learning_rate, epochs, variant=variant)
            for variant in self.variants
            for batch_size in self.batch_sizes
            for learning_rate in self.learning_rates
            for epochs in self.num_epochs
        ]

    @cached_property
    def runs(self) -> list[Hyperparameters]:
        """All runs, ordered by seed first.

        A sweep that is cut short will therefore have covered the whole grid for the first few
        seeds.
        """
        seeds = range(self.first_seed, self.first_seed + self.num_seeds)
        return [
            Hyperparameters(c.batch_size, c.learning_rate, c.num_epochs, seed, variant=c.variant)
            for seed in seeds
            for c in self.combinations
        ]

    @cached_property
    def runs_by_variant(self) -> dict[Variant, list[Hyperparameters]]:
        """The runs of each variant."""
        groups: dict[Variant, list[Hyperparameters]] = {variant: [] for variant in self.variants}
        for run in self.runs:
            groups[run.variant].append(run)
        return groups
