"""Choose the words, or runs of words, to predict in each row of a batch.

Whole-word masking follows BERT's May 2019 release. Runs of words follow ALBERT (Lan et al. 2020,
section 4.1) and SpanBERT (Joshi et al. 2020, section 3.1). Random draws depend only on a row's key
and tokens.

A run is placed only where it fits completely. This preserves the published length distribution, but
words near [CLS] and [SEP] are chosen less often. When 15% of a row of 126 words is masked, the
first and last words are each chosen 5% of the time with spans and 9% of the time with n-grams. For
words in the middle, these figures are 16% and 15%. In the released implementations, runs that reach
the end of a row are truncated, so only words near the start are chosen less often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.hashing import Purpose, below, hash_of

_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Words:
    """The words in B rows of L tokens, with at most W words per row.

    Attributes:
      begin: [B, W] the position of each word's first token; L in unused entries.
      length: [B, W] the number of tokens in each word; 0 in unused entries.
      follows: [B, W] whether each word directly follows the previous word.
    """

    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    follows: NDArray[np.bool_]

    def take(self, rows: NDArray[np.int64]) -> Words:
        """Return the words in these rows."""
        return Words(self.begin[rows], self.length[rows], self.follows[rows])


def words_of(maskable: NDArray[np.bool_], continues: NDArray[np.bool_]) -> Words:
    """Find the words in each row, as runs of tokens.

    Args:
      maskable: [B, L] True for tokens that may be predicted. All other tokens separate words.
      continues: [B, L] whether a token continues the previous token's word.
    """
    num_rows, length = maskable.shape
    before = np.zeros_like(maskable)
    before[:, 1:] = maskable[:, :-1]
    first = maskable & ~(continues & before)
    rows, positions = np.nonzero(first)
    count = np.count_nonzero(first, axis=1)
    width = int(count.max(initial=0))
    column = np.arange(len(rows)) - np.repeat(np.cumsum(count) - count, count)
    begin = np.full((num_rows, width), length, np.int64)
    begin[rows, column] = positions
    # A word ends at the next word or at a token that is not maskable.
    edge = np.where(first | ~maskable, np.arange(length), length)
    next_edge = np.full((num_rows, length + 1), length)
    next_edge[:, :length] = np.minimum.accumulate(edge[:, ::-1], axis=1)[:, ::-1]
    size = np.zeros((num_rows, width), np.int64)
    size[rows, column] = next_edge[rows, positions + 1] - positions
    follows = np.zeros((num_rows, width), bool)
    follows[:, 1:] = (begin[:, :-1] + size[:, :-1] == begin[:, 1:]) & (size[:, 1:] > 0)
    return Words(begin, size, follows)


@dataclass(frozen=True)
class Choice:
    """Runs of tokens to predict, in no particular order.

    Attributes:
      row: [num_runs] the row of each run.
      begin: [num_runs] the position of each run's first token.
      length: [num_runs] the number of tokens in each run.
    """

    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    length: NDArray[np.int64]


def choose_words(words: Words, budget: NDArray[np.int64], row_key: NDArray[np.uint64]) -> Choice:
    """Choose words in random order, skipping words that exceed the remaining token budget.

    Args:
      words: the words in each row.
      budget: [B] the maximum number of tokens to choose in each row.
      row_key: [B] a hash of everything that a row's random draws may depend on.
    """
    num_rows, width = words.begin.shape
    bits = hash_of(Purpose.MASK_CHOICE, row_key[:, None], np.arange(width))
    bits[words.length == 0] = _NEVER
    order = np.argsort(bits, axis=1, kind="stable")
    length = np.take_along_axis(words.length, order, axis=1)
    taken = np.cumsum(length, axis=1) <= budget[:, None]
    taken &= length > 0
    left = budget - np.where(taken, length, 0).sum(axis=1)
    # So far, `taken` stops at the first word that does not fit. Each iteration below takes one
    # more word in each row where a later word fits.
    reached = taken.sum(axis=1)
    index = np.arange(width)
    while True:
        fits = (index >= reached[:, None]) & (length > 0) & (length <= left[:, None])
        rows = np.flatnonzero(fits.any(axis=1))
        if not len(rows):
            break
        at = np.argmax(fits[rows], axis=1)
        taken[rows, at] = True
        left[rows] -= length[rows, at]
        reached[rows] = at + 1
    rows, indices = np.nonzero(taken)
    chosen = order[rows, indices]
    return Choice(rows, words.begin[rows, chosen], words.length[rows, chosen])


def choose_spans(
    words: Words,
    budget: NDArray[np.int64],
    row_key: NDArray[np.uint64],
    shares: NDArray[np.float64],
    *,
    cut: bool,
) -> Choice:
    """Choose spans of words one after another until each row's token budget is spent.

    The length of a span is drawn first. Its position is then drawn uniformly from all places with
    that many consecutive free words. If there is no such place, the span is shortened.

    Args:
      words: the words in each row.
      budget: [B] the maximum number of tokens to choose in each row.
      row_key: [B] a hash of everything that a row's random draws may depend on.
      shares: [longest] the probabilities of spans of 1, 2, ... words.
      cut: whether the last span is truncated when the budget is spent, even inside a word. If
        False, the span is shortened by whole words, and no span begins with a word that exceeds the
        remaining budget.
    """
    limits = np.round(np.cumsum(shares) * 2**32).astype(np.int64)[:-1]
    free = words.length > 0
    left = budget.copy()
    spans: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    active, number = np.flatnonzero(left > 0), 0
    while len(active):
        row_words, remaining = words.take(active), left[active]
        available = _free_words_from(free[active], row_words.follows)
        if not cut:
            available[row_words.length > remaining[:, None]] = 0
        longest = available.max(axis=1, initial=0)
        possible = longest > 0
        active, remaining = active[possible], remaining[possible]
        row_words = row_words.take(np.flatnonzero(possible))
        bits = hash_of(Purpose.MASK_SPAN, row_key[active], number)
        draw = (bits & np.uint64(0xFFFFFFFF)).astype(np.int64)
        count = np.minimum(1 + np.searchsorted(limits, draw, side="right"), longest[possible])
        valid = available[possible] >= count[:, None]
        nth = np.cumsum(valid, axis=1)
        first = np.argmax(nth == 1 + below(bits, nth[:, -1])[:, None], axis=1)
        rows = np.arange(len(active))
        begin = row_words.begin[rows, first]

        def num_tokens(count: NDArray[np.int64]) -> NDArray[np.int64]:
            last = first + count - 1  # noqa: B023
            ends = row_words.begin[rows, last] + row_words.length[rows, last]  # noqa: B023
            return ends - begin  # noqa: B023

        if cut:
            length = np.minimum(num_tokens(count), remaining)
        else:
            while (too_long := num_tokens(count) > remaining).any():
                count = count - too_long
            length = num_tokens(count)
        columns = np.arange(free.shape[1])
        spanned = (columns >= first[:, None]) & (columns < (first + count)[:, None])
        free[active] &= ~spanned
        left[active] -= length
        spans.append((active, begin, length))
        active, number = active[left[active] > 0], number + 1
    if not spans:
        empty = np.zeros(0, np.int64)
        return Choice(empty, empty, empty)
    return Choice(*(np.concatenate(column) for column in zip(*spans, strict=True)))


def _free_words_from(free: NDArray[np.bool_], follows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the length of the run of adjacent free words that starts at each word, [B, W]."""
    width = free.shape[1]
    columns = np.arange(width)
    stop = np.where(free & follows, width, columns)
    next_stop = np.full((len(free), width + 1), width)
    next_stop[:, :width] = np.minimum.accumulate(stop[:, ::-1], axis=1)[:, ::-1]
    return np.where(free, next_stop[:, 1:] - columns, 0)
