"""Which whole words, or runs of them, of a batch of rows are predicted.

Whole words: BERT's release of May 2019. Runs of words: ALBERT (Lan et al. 2020, section 4.1) and
SpanBERT (Joshi et al. 2020, section 3.1). What is drawn depends on a row's key and tokens alone.

A run is placed where all of it fits, which keeps the published lengths and takes the words beside
[CLS] and [SEP] less often: in rows of 126 words with 15 % masked, the first and the last word in
5 % (spans) or 9 % (n-grams) of rows, those in the middle in 16 and 15 %. The released codes cut a
run that reaches the end, and so spare only the first words.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.hashing import Purpose, below, hash_of

_NEVER = np.uint64(0xFFFFFFFFFFFFFFFF)


@dataclass(frozen=True)
class Words:
    """The words of B rows of L tokens, W at most in a row; all [B, W].

    begin: the position of a word's first token; L beyond a row's last word.
    length: of its tokens; 0 beyond the last word.
    follows: whether nothing stands between a word and the one before it.
    """

    begin: NDArray[np.int64]
    length: NDArray[np.int64]
    follows: NDArray[np.bool_]

    def take(self, rows: NDArray[np.int64]) -> Words:
        """The words of these rows."""
        return Words(self.begin[rows], self.length[rows], self.follows[rows])


def words_of(maskable: NDArray[np.bool_], continues: NDArray[np.bool_]) -> Words:
    """The runs of tokens that make up a word.

    Args:
        maskable: [B, L] whether a token may be predicted; others stand between words.
        continues: [B, L] whether a token goes on with the word of the token before it.
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
    # A word ends where the next one begins or a token stands that is none.
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
    """Runs of tokens that are predicted, in no order; all [num_runs].

    row, begin: where a run is. length: of its tokens.
    """

    row: NDArray[np.int64]
    begin: NDArray[np.int64]
    length: NDArray[np.int64]


def choose_words(words: Words, budget: NDArray[np.int64], row_key: NDArray[np.uint64]) -> Choice:
    """Words in random order, each taken unless it has more tokens than are left to take.

    Args:
        budget: [B] the most tokens that are taken of a row.
        row_key: [B] hash of all that the draws of a row may depend on.
    """
    num_rows, width = words.begin.shape
    bits = hash_of(Purpose.MASK_CHOICE, row_key[:, None], np.arange(width))
    bits[words.length == 0] = _NEVER
    order = np.argsort(bits, axis=1, kind="stable")
    length = np.take_along_axis(words.length, order, axis=1)
    taken = np.cumsum(length, axis=1) <= budget[:, None]
    taken &= length > 0
    left = budget - np.where(taken, length, 0).sum(axis=1)
    # Behind the first word that is too long, one at a time: fewer tokens are left than it has.
    reached = taken.sum(axis=1)
    place = np.arange(width)
    while True:
        fits = (place >= reached[:, None]) & (length > 0) & (length <= left[:, None])
        rows = np.flatnonzero(fits.any(axis=1))
        if not len(rows):
            break
        at = np.argmax(fits[rows], axis=1)
        taken[rows, at] = True
        left[rows] -= length[rows, at]
        reached[rows] = at + 1
    rows, places = np.nonzero(taken)
    chosen = order[rows, places]
    return Choice(rows, words.begin[rows, chosen], words.length[rows, chosen])


def choose_spans(
    words: Words,
    budget: NDArray[np.int64],
    row_key: NDArray[np.uint64],
    shares: NDArray[np.float64],
    *,
    cut: bool,
) -> Choice:
    """Spans of words, one after the other, until a row's budget of tokens is spent.

    A span's length is drawn, then its place: any run of so many free words without a gap, all
    equally likely; where there is none, of as many as there are.

    Args:
        budget, row_key: as in `choose_words`.
        shares: [longest] the probability of a span of 1, 2, ... words.
        cut: whether a span is cut within a word where the budget ends; otherwise it is shortened
            by whole words, and a word with more tokens than are left begins none.
    """
    limits = np.round(np.cumsum(shares) * 2**32).astype(np.int64)[:-1]
    free = words.length > 0
    left = budget.copy()
    found: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    active, number = np.flatnonzero(left > 0), 0
    while len(active):
        here, room = words.take(active), left[active]
        available = _free_words_from(free[active], here.follows)
        if not cut:
            available[here.length > room[:, None]] = 0
        longest = available.max(axis=1, initial=0)
        going = longest > 0
        active, here, room = active[going], here.take(np.flatnonzero(going)), room[going]
        bits = hash_of(Purpose.MASK_SPAN, row_key[active], number)
        draw = (bits & np.uint64(0xFFFFFFFF)).astype(np.int64)
        count = np.minimum(1 + np.searchsorted(limits, draw, side="right"), longest[going])
        valid = available[going] >= count[:, None]
        nth = np.cumsum(valid, axis=1)
        first = np.argmax(nth == 1 + below(bits, nth[:, -1])[:, None], axis=1)
        each = np.arange(len(active))
        begin = here.begin[each, first]

        def tokens(count: NDArray[np.int64]) -> NDArray[np.int64]:
            last = first + count - 1  # noqa: B023
            return here.begin[each, last] + here.length[each, last] - begin  # noqa: B023

        if cut:
            length = np.minimum(tokens(count), room)
        else:
            while (over := tokens(count) > room).any():
                count = count - over
            length = tokens(count)
        columns = np.arange(free.shape[1])
        spanned = (columns >= first[:, None]) & (columns < (first + count)[:, None])
        free[active] &= ~spanned
        left[active] -= length
        found.append((active, begin, length))
        active, number = active[left[active] > 0], number + 1
    if not found:
        nothing = np.zeros(0, np.int64)
        return Choice(nothing, nothing, nothing)
    return Choice(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _free_words_from(free: NDArray[np.bool_], follows: NDArray[np.bool_]) -> NDArray[np.int64]:
    """[B, W]: how many words in a row are free from each on, with nothing between them."""
    width = free.shape[1]
    columns = np.arange(width)
    stop = np.where(free & follows, width, columns)
    next_stop = np.full((len(free), width + 1), width)
    next_stop[:, :width] = np.minimum.accumulate(stop[:, ::-1], axis=1)[:, ::-1]
    return np.where(free, next_stop[:, 1:] - columns, 0)
