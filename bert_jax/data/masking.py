"""Masked-language-model corruption of a batch of rows (Devlin et al. 2019, section 3.1, task 1)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.hashing import Purpose, below, hash_of, low_half
from bert_jax.data.vocabulary import Vocabulary

_POSITION_BITS = np.uint64(16)
_POSITION_MASK = np.uint64(0xFFFF)
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class MaskingConfig:
    """How many tokens are predicted, and what the model sees in their place.

    Attributes:
        rate: share of the non-special tokens that are predicted.
        mask_fraction: share of those shown as [MASK].
        random_fraction: share of those shown as a random token; the rest is shown unchanged.
    """

    rate: float = 0.15
    mask_fraction: float = 0.8
    random_fraction: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"masking rate is {self.rate}; expected above 0, at most 1")
        fractions = (self.mask_fraction, self.random_fraction)
        if min(fractions) < 0 or sum(fractions) > 1 + 1e-9:
            raise ValueError(
                f"mask_fraction {self.mask_fraction} and random_fraction {self.random_fraction} "
                "must not be negative and add up to at most 1"
            )

    def max_predictions(self, length: int) -> int:
        """Returns K, the most predictions a row of `length` positions can have."""
        return math.ceil(self.rate * length)


@dataclass(frozen=True)
class Predictions:
    """The tokens to predict, K a row.

    Attributes:
        positions: [B, K] int32, ascending; 0 where unused.
        labels: [B, K] int32, the true tokens; 0 where unused.
        weights: [B, K] float32, 1 or 0 where unused.
    """

    positions: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]


class Masker:
    """Chooses and corrupts tokens; what it draws depends on a row's key and positions alone."""

    def __init__(self, config: MaskingConfig, vocabulary: Vocabulary):
        self.config = config
        self._mask_id = vocabulary.mask_id
        self._random_ids = vocabulary.random_ids
        self._is_maskable = vocabulary.is_maskable()
        thresholds = np.array([config.mask_fraction, config.mask_fraction + config.random_fraction])
        self._mask_below, self._random_below = np.round(thresholds * 2**32).astype(np.int64)

    def mask(self, token_ids: NDArray[np.int32], row_key: NDArray[np.uint64]) -> Predictions:
        """Corrupts `token_ids` [B, L] in place and returns what is to be predicted.

        A row with n > 0 non-special tokens gets exactly max(1, floor(rate * n + 1/2)) predictions,
        each set of that size being equally likely.

        Args:
            row_key: [B] hash of all that the draws of a row may depend on.
        """
        positions, used = self._choose(token_ids, row_key)
        labels = np.take_along_axis(token_ids, positions, axis=1)
        rows, columns = np.nonzero(used)
        at = positions[rows, columns]
        bits = hash_of(Purpose.MASK_REPLACEMENT, row_key[rows], at)
        token_ids[rows, at] = self._replacements(labels[rows, columns], bits)
        labels[~used] = 0
        return Predictions(positions.astype(np.int32), labels, used.astype(np.float32))

    def _choose(
        self, token_ids: NDArray[np.int32], row_key: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns [B, K] ascending positions, 0 where unused, and which are used."""
        num_rows, length = token_ids.shape
        assert length <= 1 << _POSITION_BITS, "a position takes 16 bits of its sort key"
        num_predictions = self.config.max_predictions(length)
        maskable = self._is_maskable.take(token_ids)
        num_maskable = np.count_nonzero(maskable, axis=1)
        count = np.floor(self.config.rate * num_maskable + 0.5).astype(np.int64)
        count = np.where(num_maskable > 0, np.maximum(count, 1), 0)

        # The smallest hashes of the row; the position in the low bits makes them all different.
        column = np.arange(length, dtype=np.uint64)
        bits = hash_of(Purpose.MASK_CHOICE, row_key[:, None], column)
        bits &= ~_POSITION_MASK
        bits |= column
        bits[~maskable] = _NEVER
        if num_predictions < length:
            bits = np.partition(bits, num_predictions, axis=1)[:, :num_predictions]
        smallest = np.sort(bits, axis=1)
        used = np.arange(num_predictions) < count[:, None]
        positions = (smallest & _POSITION_MASK).astype(np.int64)
        positions[~used] = length  # sorts behind all that are used
        positions.sort(axis=1)
        positions[~used] = 0
        return positions, used

    def _replacements(
        self, labels: NDArray[np.int32], bits: NDArray[np.uint64]
    ) -> NDArray[np.int32]:
        """Returns what is shown in place of `labels`."""
        kind = (bits >> np.uint64(32)).astype(np.int64)
        random = self._random_ids[below(low_half(bits), len(self._random_ids))]
        shown = np.where(kind < self._random_below, random, labels)
        return np.where(kind < self._mask_below, np.int32(self._mask_id), shown)
