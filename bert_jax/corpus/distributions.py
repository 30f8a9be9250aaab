"""Summarize whole numbers, such as the lengths of documents, by quantiles and histograms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

# The quantiles shown in tables, as fractions, keyed by their names.
QUANTILES = {"5%": 0.05, "25%": 0.25, "median": 0.5, "75%": 0.75, "95%": 0.95}


@dataclass(frozen=True)
class Bin:
    """A bin of a histogram.

    Attributes:
      low: the smallest number in the bin.
      high: the largest number in the bin.
      share: the fraction of all numbers that are in the bin.
    """

    low: int
    high: int
    share: float

    def __str__(self) -> str:
        return f"{self.low:,}" if self.low == self.high else f"{self.low:,}-{self.high:,}"


@dataclass(frozen=True)
class Distribution:
    """A distribution of whole numbers that are at least 1, such as the lengths of documents.

    Attributes:
      values: [num_values] the distinct numbers, in ascending order.
      counts: [num_values] how often each number occurs.
    """

    values: NDArray[np.int64] = field(repr=False)
    counts: NDArray[np.int64] = field(repr=False)

    @classmethod
    def of(cls, numbers: NDArray[np.int64]) -> Distribution:
        """Return the distribution of an array of numbers, which may be in any order."""
        values, counts = np.unique(numbers, return_counts=True)
        assert len(values) and values[0] >= 1, "expected numbers of at least 1"
        return cls(values, counts)

    @property
    def size(self) -> int:
        """How many numbers there are, including repetitions."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """The mean of the numbers."""
        return float(self.values @ self.counts) / self.size

    def quantile(self, fraction: float) -> int:
        """Return the smallest number x such that at least this fraction of the numbers is <= x."""
        needed = fraction * self.size
        return int(self.values[np.searchsorted(np.cumsum(self.counts), needed)])

    def even_bins(self, high: int, num_bins: int) -> list[Bin]:
        """Return bins of equal widths, up to rounding, that cover 1 to `high`.

        Args:
          high: the end of the last bin, at least the largest number.
          num_bins: the number of bins; at most `high` bins are returned.
        """
        edges = np.linspace(0, high, min(num_bins, high) + 1).round().astype(np.int64)
        return self._bins(edges.tolist())

    def doubling_bins(self) -> list[Bin]:
        """Return bins between successive powers of two that cover all of the numbers."""
        first, last = (int(value).bit_length() for value in (self.values[0], self.values[-1]))
        return self._bins([2 ** (bits - 1) - 1 for bits in range(first, last + 2)])

    def _bins(self, edges: Sequence[int]) -> list[Bin]:
        """Return the bins between successive edges. Each bin includes its upper edge."""
        below = np.append(0, np.cumsum(self.counts))
        ends = below[np.searchsorted(self.values, edges, side="right")]
        shares = np.diff(ends) / self.size
        return [
            Bin(low + 1, high, float(share))
            for low, high, share in zip(edges[:-1], edges[1:], shares, strict=True)
        ]
