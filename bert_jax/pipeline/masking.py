"""Mask tokens for masked-language modeling (Devlin et al. 2019, section 3.1, task 1).

The tokens of a word, or of several consecutive words, can also be masked together; see
`MaskingConfig.unit`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, assert_never, get_args

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
    """Which tokens are predicted, and what the model sees instead of them.

    Attributes:
      rate: the fraction of non-special tokens to predict.
      final_rate: the rate at the last step of the run. The rate changes linearly from `rate` to
        this value. 0 for a constant rate. Held-out text is masked at the rate of the last step,
        unless `evaluation.masking_rate` is set.
      mask_fraction: the fraction of predicted tokens that are replaced by [MASK].
      random_fraction: the fraction of predicted tokens that are replaced by a random token. The
        rest are left unchanged.
      unit: which tokens are predicted together: "token", single tokens; "word", all tokens of a
        word (BERT's release of May 2019); "ngram", 1 to `max_ngram` consecutive words, where n
        words have a probability proportional to 1 / n (Lan et al. 2020, section 4.1); "span", 1 to
        `max_span` consecutive words, with a geometric length distribution (`span_probability`),
        which are all replaced in the same way (Joshi et al. 2020, section 3.1).
      max_ngram: the maximum number of words in an n-gram.
      span_probability: the parameter of the geometric distribution of span lengths.
      max_span: the maximum number of words in a span.
      num_maskings: 0 to mask every epoch differently (dynamic masking, Liu et al. 2019, section
        4.1). Any other number n makes later epochs reuse the masks and pairs of the first n epochs,
        in a different order (static masking; BERT's release has a duplication factor of 10).
      later_rates: the rates after `rate`, for a rate that changes in steps. Each rate applies to an
        equal part of the run: rate=0.3 with later_rates=(0.15, 0.05) changes twice (Ankner et al.
        2024, "Dynamic Masking Rate Schedules for MLM Pretraining"). Set either this or
        `final_rate`.
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
    later_rates: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.unit not in get_args(MaskUnit):
            expected = ", ".join(map(repr, get_args(MaskUnit)))
            raise ValueError(f"masking.unit={self.unit!r}: expected one of {expected}.")
        for name in ("max_ngram", "max_span"):
            if getattr(self, name) < 1:
                raise ValueError(f"masking.{name}={getattr(self, name)}: expected at least 1.")
        if not 0 < self.span_probability < 1:
            raise ValueError(
                f"masking.span_probability={self.span_probability}: expected a number between 0 "
                "and 1."
            )
        for name, unit in (
            ("max_ngram", "ngram"),
            ("span_probability", "span"),
            ("max_span", "span"),
        ):
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default and self.unit != unit:
                raise ValueError(
                    f"masking.{name}={value}: only used with unit={unit!r}, but unit is "
                    f"{self.unit!r}. Set it to {default}, or change masking.unit."
                )
        if self.num_maskings and self.final_rate:
            raise ValueError(
                f"masking.num_maskings={self.num_maskings}: masks cannot be reused while the rate "
                f"changes (masking.final_rate={self.final_rate}). Set one of the two to 0."
            )
        self._check_later_rates()
        if self.num_maskings < 0:
            raise ValueError(
                f"masking.num_maskings={self.num_maskings}: expected 0 (dynamic masking) or more."
            )
        if not 0 < self.rate <= 1:
            raise ValueError(f"masking.rate={self.rate}: must be above 0 and at most 1.")
        if not 0 <= self.final_rate <= 1:
            raise ValueError(
                f"masking.final_rate={self.final_rate}: must be above 0 and at most 1, or 0 for a "
                "constant rate."
            )
        fractions = (self.mask_fraction, self.random_fraction)
        if not (min(fractions) >= 0 and sum(fractions) <= 1 + 1e-9):  # also rejects NaN
            raise ValueError(
                f"masking.mask_fraction={self.mask_fraction} and masking.random_fraction="
                f"{self.random_fraction}: each must be at least 0, and their sum at most 1."
            )

    def _check_later_rates(self) -> None:
        if not self.later_rates:
            return
        if self.final_rate:
            raise ValueError(
                f"masking.later_rates={self.later_rates} and masking.final_rate={self.final_rate} "
                "both change the rate. Set masking.later_rates=() or masking.final_rate=0."
            )
        if self.num_maskings:
            raise ValueError(
                f"masking.num_maskings={self.num_maskings}: masks cannot be reused while the rate "
                f"changes (masking.later_rates={self.later_rates}). Set num_maskings to 0, or "
                "later_rates to ()."
            )
        if not all(0 < rate <= 1 for rate in self.later_rates):
            raise ValueError(
                f"masking.later_rates={self.later_rates}: each rate must be above 0 and at most 1."
            )

    @property
    def changes(self) -> bool:
        """Whether the rate changes during the run, so that it depends on the number of steps."""
        return self.final_rate > 0 or len(self.later_rates) > 0

    @property
    def identity(self) -> dict[str, Any]:
        """The values that, together with the number of steps, determine the masks."""
        values = dict(vars(self))
        if not self.later_rates:  # checkpoints of earlier versions do not contain this key
            del values["later_rates"]
        return values

    def constant(self, rate: float) -> MaskingConfig:
        """Return these settings with a constant rate."""
        return replace(self, rate=rate, final_rate=0.0, later_rates=())

    @property
    def is_span(self) -> bool:
        """Whether spans are replaced as units, with the last span truncated to fit the budget."""
        match self.unit:
            case "span":
                return True
            case "token" | "word" | "ngram":
                return False
            case _:
                assert_never(self.unit)

    def max_predictions(self, length: int) -> int:
        """Return K, the maximum number of predictions in a row of `length` positions."""
        return math.ceil(max(self.rate, self.final_rate, *self.later_rates) * length)

    def rate_at(self, step: int, num_steps: int) -> float:
        """Return the masking rate at a given step of a run; steps are counted from 0."""
        if self.later_rates:
            rates = (self.rate, *self.later_rates)
            return rates[step * len(rates) // num_steps]
        if not self.final_rate:
            return self.rate
        return self.rate + step / max(num_steps - 1, 1) * (self.final_rate - self.rate)

    @property
    def last_rate(self) -> float:
        """The masking rate of the last step, which is the default for held-out text."""
        return self.later_rates[-1] if self.later_rates else self.rate_at(1, 2)

    def span_shares(self) -> NDArray[np.float64]:
        """Return the probabilities that an n-gram or span has 1, 2, ... words."""
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
    """The tokens to predict, at most K per row.

    Attributes:
      positions: [B, K] int32, the masked positions in ascending order; 0 where unused.
      labels: [B, K] int32, the original tokens; 0 where unused.
      weights: [B, K] float32, 1 where used and 0 where unused.
    """

    positions: NDArray[np.int32]
    labels: NDArray[np.int32]
    weights: NDArray[np.float32]


class Masker:
    """Masks tokens, using random draws that depend only on a row's key and tokens."""

    def __init__(self, config: MaskingConfig, vocabulary: Vocabulary):
        self.config = config
        self._mask_id = vocabulary.mask_id
        self._random_ids = vocabulary.random_ids
        self._is_maskable = vocabulary.is_maskable()
        self._continues = vocabulary.continues_word()
        thresholds = np.array([config.mask_fraction, config.mask_fraction + config.random_fraction])
        self._mask_below, self._random_below = np.round(thresholds * 2**32).astype(np.int64)

    def mask(
        self, token_ids: NDArray[np.int32], row_key: NDArray[np.uint64], rate: float | None = None
    ) -> Predictions:
        """Mask tokens of `token_ids` in place and return the tokens to predict.

        A row with n > 0 non-special tokens gets exactly max(1, floor(rate * n + 1/2)) predictions.
        With single tokens, every set of this size is equally likely. Words and n-grams are not
        split, so with these units a row may get slightly fewer predictions. With spans, the last
        span is truncated to reach the exact number.

        Args:
          token_ids: [B, L] the tokens of each row.
          row_key: [B] a hash of everything that a row's random draws may depend on.
          rate: the fraction of non-special tokens to predict, at most the config's largest rate; if
            None, the rate of the last step.
        """
        maskable = self._is_maskable.take(token_ids)
        num_maskable = np.count_nonzero(maskable, axis=1)
        rate = self.config.last_rate if rate is None else rate
        count = np.floor(rate * num_maskable + 0.5).astype(np.int64)
        count = np.where(num_maskable > 0, np.maximum(count, 1), 0)
        match self.config.unit:
            case "token":
                positions, used = self._choose_tokens(maskable, count, row_key)
                rows, columns = np.nonzero(used)
                drawn_at = positions[rows, columns]
            case "word" | "ngram" | "span":
                choice = self._choose_words(token_ids, maskable, count, row_key)
                positions, used, drawn_at = self._lay_out(choice, token_ids.shape)
                rows, columns = np.nonzero(used)
            case _:
                assert_never(self.config.unit)
        labels = np.take_along_axis(token_ids, positions, axis=1)
        at = positions[rows, columns]
        bits = hash_of(Purpose.MASK_REPLACEMENT, row_key[rows], at)
        kind = bits
        if self.config.is_span:
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
                shares, cut = self.config.span_shares(), self.config.is_span
                return choose_spans(words, count, row_key, shares, cut=cut)
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
        """Return the positions to mask, and which entries are used, both [B, K].

        The positions are in ascending order, and 0 in unused entries.
        """
        num_rows, length = maskable.shape
        assert length <= 1 << _POSITION_BITS, "a position has 16 bits in its sort key"
        num_predictions = self.config.max_predictions(length)
        # Select the smallest hashes in each row. Storing positions in the low bits breaks ties.
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
        positions[~used] = length  # so that unused entries sort after the used ones
        positions.sort(axis=1)
        positions[~used] = 0
        return positions, used

    def _lay_out(
        self, choice: Choice, shape: tuple[int, ...]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
        """Return the result of `_choose_tokens` and the start of each position's run.

        The starts are a one-dimensional array with one element per used position: the first
        position of the run that contains it.
        """
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
        """Return the tokens that replace `labels`."""
        kind = (kind_bits >> np.uint64(32)).astype(np.int64)
        random = self._random_ids[below(low_half(bits), len(self._random_ids))]
        unmasked = np.where(kind < self._random_below, random, labels)
        return np.where(kind < self._mask_below, np.int32(self._mask_id), unmasked)
