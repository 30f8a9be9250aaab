"""Masked-language-model corruption of a batch of rows (Devlin et al. 2019, section 3.1, task 1).

Beside single tokens, words and runs of words can be predicted together; `MaskingConfig.unit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, assert_never, get_args

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import ranges
from bert_jax.hashing import Purpose, below, hash_of, low_half
from bert_jax.pipeline.mask_spans import Choice, choose_spans, choose_words, words_of
from bert_jax.tokenizers.special_tokens import Vocabulary

_POSITION_BITS = np.uint64(16)
_POSITION_MASK = np.uint64(0xFFFF)
_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


MaskUnit = Literal["token", "word", "ngram", "span"]


@dataclass(frozen=True)
class MaskingConfig:
    """How many tokens are predicted, and what the model sees in their place.

    Attributes:
        rate: share of the non-special tokens that are predicted.
        final_rate: what the share changes to, linearly from the run's first step to its last; 0 for
            no change. Held-out text is masked as in the last step, at every evaluation.
        mask_fraction: share of those shown as [MASK].
        random_fraction: share of those shown as a random token; the rest is shown unchanged.
        unit: what is predicted together: "token"; "word", all tokens of a word (BERT's release of
            May 2019); "ngram", 1 up to `max_ngram` words in a row, n of them with a probability
            proportional to 1 / n (Lan et al. 2020, section 4.1); "span", words in a row too, their
            number geometric with `span_probability` and at most `max_span`, all of them shown alike
            (Joshi et al. 2020, section 3.1).
        num_maskings: 0 draws anew in every epoch (dynamic masking, Liu et al. 2019, section 4.1);
            n draws for n epochs, which then come again (static masking; the duplication factor of
            BERT's release, 10 there), with their pairs, in another order.
    """

    rate: float = 0.15
    mask_fraction: float = 0.8
    random_fraction: float = 0.1
    unit: MaskUnit = "token"
    max_ngram: int = 3
    span_probability: float = 0.2
    max_span: int = 10
    num_maskings: int = 0
    final_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.unit not in get_args(MaskUnit):
            expected = ", ".join(map(repr, get_args(MaskUnit)))
            raise ValueError(f"masking unit is {self.unit!r}; expected one of {expected}")
        if self.max_ngram < 1 or self.max_span < 1:
            raise ValueError(
                f"max_ngram {self.max_ngram} and max_span {self.max_span} must be 1 or more words"
            )
        if not 0 < self.span_probability < 1:
            raise ValueError(f"span_probability is {self.span_probability}; expected within 0..1")
        for name, unit in (
            ("max_ngram", "ngram"),
            ("span_probability", "span"),
            ("max_span", "span"),
        ):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default and self.unit != unit:
                raise ValueError(
                    f"{name}={value} is of unit={unit!r}, the unit is {self.unit!r}: leave it at "
                    f"{default}, or choose that unit"
                )
        if self.num_maskings and self.final_rate:
            raise ValueError(
                f"num_maskings={self.num_maskings} repeats maskings, and with final_rate="
                f"{self.final_rate} the share of what is masked never comes again: set one to 0"
            )
        if self.num_maskings < 0:
            raise ValueError(f"num_maskings is {self.num_maskings}; expected 0 (dynamic) or more")
        if not 0 < self.rate <= 1:
            raise ValueError(f"masking rate is {self.rate}; expected above 0, at most 1")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(
                f"masking final_rate is {self.final_rate}; expected above 0, at most 1, or 0 where "
                "the rate does not change"
            )
        fractions = (self.mask_fraction, self.random_fraction)
        if not (min(fractions) >= 0 and sum(fractions) <= 1 + 1e-9):  # nan is neither
            raise ValueError(
                f"mask_fraction {self.mask_fraction} and random_fraction {self.random_fraction} "
                "must not be negative and add up to at most 1"
            )

    def max_predictions(self, length: int) -> int:
        """Returns K, the most predictions a row of `length` positions can have."""
        return math.ceil(max(self.rate, self.final_rate) * length)

    def rate_at(self, progress: float) -> float:
        """Returns the rate when this part of a run, 0 up to 1, is over."""
        if not self.final_rate:
            return self.rate
        return self.rate + progress * (self.final_rate - self.rate)

    def span_shares(self) -> NDArray[np.float64]:
        """Returns [longest], the probability of 1, 2, ... words of an n-gram or a span."""
        match self.unit:
            case "span":
                words = np.arange(self.max_span)
                weights = self.span_probability * (1 - self.span_probability) ** words
            case "ngram":
                weights = 1 / np.arange(1, self.max_ngram + 1)
            case "token" | "word":
                raise AssertionError(f"unit={self.unit!r} draws no lengths")
            case _:
                assert_never(self.unit)
        return weights / weights.sum()


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
        self._continues = vocabulary.continues_word()
        thresholds = np.array([config.mask_fraction, config.mask_fraction + config.random_fraction])
        self._mask_below, self._random_below = np.round(thresholds * 2**32).astype(np.int64)

    def mask(
        self, token_ids: NDArray[np.int32], row_key: NDArray[np.uint64], progress: float = 1.0
    ) -> Predictions:
        """Corrupts `token_ids` [B, L] in place and returns what is to be predicted.

        A row with n > 0 non-special tokens gets exactly max(1, floor(rate * n + 1/2)) predictions,
        each set of that size being equally likely. Words and n-grams are taken whole, so that a row
        may get a few less; spans are cut where the number is reached.

        Args:
            row_key: [B] hash of all that the draws of a row may depend on.
            progress: how much of the run is over, 0 up to 1; what the rate may depend on.
        """
        maskable = self._is_maskable.take(token_ids)
        num_maskable = np.count_nonzero(maskable, axis=1)
        rate = self.config.rate_at(progress)
        count = np.floor(rate * num_maskable + 0.5).astype(np.int64)
        count = np.where(num_maskable > 0, np.maximum(count, 1), 0)
        match self.config.unit:
            case "token":
                positions, used = self._choose_tokens(maskable, count, row_key)
                rows, columns = np.nonzero(used)
                drawn_at = positions[rows, columns]
            case "word" | "ngram" | "span":
                choice = self._choose_words(token_ids, maskable, count, row_key)
                positions, used, drawn_at = self._laid_out(choice, token_ids.shape)
                rows, columns = np.nonzero(used)
            case _:
                assert_never(self.config.unit)
        labels = np.take_along_axis(token_ids, positions, axis=1)
        at = positions[rows, columns]
        bits = hash_of(Purpose.MASK_REPLACEMENT, row_key[rows], at)
        kind = bits
        if self.config.unit == "span":
            kind = hash_of(Purpose.MASK_REPLACEMENT, row_key[rows], drawn_at)
        token_ids[rows, at] = self._replacements(labels[rows, columns], kind, bits)
        labels[~used] = 0
        return Predictions(positions.astype(np.int32), labels, used.astype(np.float32))

    def _choose_words(
        self,
        token_ids: NDArray[np.int32],
        maskable: NDArray[np.bool_],
        count: NDArray[np.int64],
        row_key: NDArray[np.uint64],
    ) -> Choice:
        words = words_of(maskable, self._continues.take(token_ids))
        match self.config.unit:
            case "word":
                return choose_words(words, count, row_key)
            case "ngram" | "span":
                cut = self.config.unit == "span"
                return choose_spans(words, count, row_key, self.config.span_shares(), cut=cut)
            case "token":
                raise AssertionError("unit='token' chooses no words")
            case _:
                assert_never(self.config.unit)

    def _choose_tokens(
        self,
        maskable: NDArray[np.bool_],
        count: NDArray[np.int64],
        row_key: NDArray[np.uint64],
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Returns [B, K] ascending positions, 0 where unused, and which are used."""
        num_rows, length = maskable.shape
        assert length <= 1 << _POSITION_BITS, "a position takes 16 bits of its sort key"
        num_predictions = self.config.max_predictions(length)
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

    def _laid_out(
        self, choice: Choice, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Returns positions and used as `_choose_tokens`, and of each used one where its run is."""
        num_rows, length = shape
        num_predictions = self.config.max_predictions(length)
        at = ranges(choice.row * length + choice.begin, choice.length)
        order = np.argsort(at)
        at, run = at[order], np.repeat(choice.begin, choice.length)[order]
        count = np.bincount(at // length, minlength=num_rows)
        used = np.arange(num_predictions) < count[:, None]
        positions = np.zeros((num_rows, num_predictions), np.int64)
        positions[used] = at % length
        return positions, used, run

    def _replacements(
        self, labels: NDArray[np.int32], kind_bits: NDArray[np.uint64], bits: NDArray[np.uint64]
    ) -> NDArray[np.int32]:
        """Returns what is shown in place of `labels`."""
        kind = (kind_bits >> np.uint64(32)).astype(np.int64)
        random = self._random_ids[below(low_half(bits), len(self._random_ids))]
        shown = np.where(kind < self._random_below, random, labels)
        return np.where(kind < self._mask_below, np.int32(self._mask_id), shown)
