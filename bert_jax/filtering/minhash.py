"""Estimate the similarity of documents with MinHash, and find candidate pairs with LSH.

The similarity of two documents is the Jaccard similarity of their sets of word 5-grams (Broder
1997, "On the resemblance and containment of documents"; Lee et al. 2022, "Deduplicating Training
Data Makes Language Models Better", section 4.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.filtering.words import Hashes, all_shingles

SHINGLE_WORDS = 5
LOWEST_THRESHOLD, HIGHEST_THRESHOLD = 0.3, 0.99
_STANDARD_ERROR = 0.025
_FEWEST_PERMUTATIONS = 64
_CANDIDATE_PROBABILITY = 0.99
# This many shingles are hashed at a time, so that they stay in the processor's cache.
_CHUNK = 1 << 15
_SEED = 1997

# A signature keeps the low 16 bits of every minimum, as in b-bit minwise hashing (Li and König
# 2010). Two different minima have the same low bits with probability 2**-16, which is far below the
# standard error.
Signatures = NDArray[np.uint16]


@dataclass(frozen=True)
class MinHash:
    """The permutations and bands that are used for a similarity threshold.

    The number of permutations is chosen so that estimates at the threshold have a standard error of
    0.025, but it is at least 64. Two documents become candidates if they agree in at least one
    band. The number of rows in a band is the largest for which a pair at the threshold becomes a
    candidate with a probability of at least 0.99. For a threshold of 0.8, there are 256
    permutations, in 32 bands of 8 rows.

    Attributes:
      threshold: the similarity at or above which documents are near-duplicates.
    """

    threshold: float

    @property
    def num_permutations(self) -> int:
        """The number of permutations, and the length of a signature."""
        variance = self.threshold * (1 - self.threshold)
        # Without rounding, the result for 0.8 * 0.2 / 0.025**2 is 257 because of a rounding error.
        return max(_FEWEST_PERMUTATIONS, math.ceil(round(variance / _STANDARD_ERROR**2, 6)))

    @property
    def rows(self) -> int:
        """The number of rows in a band."""
        permutations = range(1, self.num_permutations + 1)
        return max(rows for rows in permutations if self._found(rows) >= _CANDIDATE_PROBABILITY)

    @property
    def bands(self) -> int:
        """The number of bands."""
        return self.num_permutations // self.rows

    def _found(self, rows: int) -> float:
        return 1 - (1 - self.threshold**rows) ** (self.num_permutations // rows)

    def candidate_probability(self, similarity: float) -> float:
        """Return the probability that two documents with this similarity become candidates."""
        return 1 - (1 - similarity**self.rows) ** self.bands

    def sign(self, texts: Sequence[str]) -> Signatures:
        """Return the texts' signatures, of shape (num_permutations, num_texts).

        A text without words has a signature whose values are all 0xFFFF; see `has_words`.
        """
        return self.sign_shingles(*all_shingles(texts, SHINGLE_WORDS))

    def sign_shingles(self, hashes: Hashes, counts: NDArray[np.intp]) -> Signatures:
        """Return the signatures of texts, given their shingles as returned by `all_shingles`."""
        return _signatures(hashes.astype(np.uint32), counts, self.num_permutations)


def has_words(signatures: Signatures) -> NDArray[np.bool_]:
    """Return whether each text contains words; texts without words cannot be compared."""
    return np.any(signatures != 0xFFFF, axis=0)


def similarities(first: Signatures, second: Signatures) -> NDArray[np.float64]:
    """Return the estimated similarities of pairs of texts.

    Args:
      first: the signatures of the first text of each pair, of shape (num_pairs, num_permutations).
      second: the signatures of the second texts, of the same shape.
    """
    return np.mean(first == second, axis=1)


def band_hashes(rows: Signatures) -> NDArray[np.uint64]:
    """Return a hash of each text's values in one band.

    Args:
      rows: the rows of the band, of shape (rows, num_texts).
    """
    hashes = np.full(rows.shape[1], 0xCBF29CE484222325, np.uint64)
    # Apply FNV-1a to 16 bits at a time, with an additional shift that mixes the bits.
    for row in rows:
        hashes ^= row
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _signatures(
    hashes: NDArray[np.uint32], counts: NDArray[np.intp], num_permutations: int
) -> Signatures:
    """Return the signatures of sets of hashes, which may contain repetitions.

    Each permutation multiplies the 32-bit hashes by an odd number modulo 2**32. Multiplication is
    sufficient because the hashes themselves are already random.

    Args:
      hashes: the hashes of all sets, one set after another.
      counts: the number of hashes in each set.
      num_permutations: the length of a signature.
    """
    filled = np.flatnonzero(counts)
    starts = np.cumsum(counts[filled]) - counts[filled]
    minima = np.full((num_permutations, len(filled)), 0xFFFFFFFF, np.uint32)
    random = np.random.Generator(np.random.PCG64(_SEED))
    factors = random.integers(0, 1 << 32, num_permutations, dtype=np.uint32) | np.uint32(1)
    permuted = np.empty(_CHUNK, np.uint32)
    for begin in range(0, len(hashes), _CHUNK):
        chunk = hashes[begin : begin + _CHUNK]
        # The first set in the chunk may have begun in an earlier chunk.
        first = int(np.searchsorted(starts, begin, side="right")) - 1
        last = int(np.searchsorted(starts, begin + len(chunk)))
        inner = np.maximum(starts[first:last] - begin, 0)
        values = permuted[: len(chunk)]
        for row, factor in zip(minima[:, first:last], factors, strict=True):
            np.multiply(chunk, factor, out=values)
            np.minimum(row, np.minimum.reduceat(values, inner), out=row)
    signatures = np.full((num_permutations, len(counts)), 0xFFFF, np.uint16)
    signatures[:, filled] = minima.astype(np.uint16)
    return signatures
