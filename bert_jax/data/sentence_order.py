"""Sentence order: which pieces are split in two, and which half comes first.

The task of ALBERT (Lan et al. 2020, section 3.1): two consecutive segments, half of the time
swapped. Nothing but the text may tell the order:

- A piece is split at the sentence start nearest to a place drawn in it, each as likely: drawing one
  of the sentence starts would often split off a heading, which tells by its length that it comes
  first.
- Records are cut where they are full, mid-sentence. Halves that ended there would tell the order by
  their ends: in order the first ends with a sentence, swapped it breaks off. So whole sentences
  alone change places; one that was cut stays at the outer end it stands at, under either label.
- Where spaces are text (byte-level BPE), all sentences but a document's first have one before them.
  The half that began with that one would be told by its first token: it stays where it is too, and
  so does any other that a piece begins with, which asks for three whole sentences there.

On books and Wikipedia, 20,000 rows of 128 or of 512 tokens, boosted trees tell the order from the
lengths and from whether either half ends with a closing mark with an AUC of 0.496 and 0.498.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.hashing import Purpose, below, hash_of, low_half
from bert_jax.data.pairs import Segments, equal_tokens, piece_keys
from bert_jax.data.records import RecordBatch, ranges

IN_ORDER = 0
IS_SWAPPED = 1


def draw_orders(
    pool: RecordBatch, record_key: NDArray[np.uint64], capacity: int, *, spaces_are_text: bool
) -> tuple[Segments, NDArray[np.int32]]:
    """Splits the pieces of a pool in two and draws which half comes first.

    Args:
        record_key: [num_records] hash of all that the draws of a record may depend on.
        capacity: tokens of the longest piece: the last sentence of one as long may be cut.
        spaces_are_text: whether a sentence's tokens tell if there was a space before it.

    Returns:
        Segments of all pieces, and the tokens they are ranges of: the pool's, with the halves of
        swapped pieces swapped. A piece without two whole sentences to swap stays whole.
    """
    key = piece_keys(pool, record_key)
    begin, end = _whole_sentences(pool, capacity, spaces_are_text=spaces_are_text)
    piece, split = _nearest_splits(pool, key, begin, end)
    early, late = split - begin[piece], end[piece] - split
    first, second = pool.piece_offset[piece] + begin[piece], pool.piece_offset[piece] + split
    swapped = below(hash_of(key[piece], Purpose.LABEL), 2) == IS_SWAPPED
    swapped &= ~equal_tokens(pool.tokens, first, second, early, swapped & (early == late))

    tokens = pool.tokens.copy()
    begins = np.stack([second, first], axis=1)[swapped].ravel()
    lengths = np.stack([late, early], axis=1)[swapped].ravel()
    tokens[ranges(first[swapped], (early + late)[swapped])] = pool.tokens[ranges(begins, lengths)]

    a_length = pool.piece_length.copy()
    a_length[piece] = begin[piece] + np.where(swapped, late, early)
    label = np.zeros_like(a_length)
    label[piece] = np.where(swapped, IS_SWAPPED, IN_ORDER)
    b_offset, b_length = pool.piece_offset + a_length, pool.piece_length - a_length
    return Segments(pool.piece_offset, a_length, b_offset, b_length, label), tokens


def _whole_sentences(
    pool: RecordBatch, capacity: int, *, spaces_are_text: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where in each piece the first sentence that may move begins, and the last ends."""
    has_start = pool.starts_length > 0
    begin, end = pool.piece_length.copy(), pool.piece_length.copy()
    begin[has_start] = pool.starts[pool.starts_offset[has_start]]
    if spaces_are_text:
        several = pool.starts_length > 1
        after_first = pool.starts_offset[several] + 1
        begin[several] = np.where(begin[several], begin[several], pool.starts[after_first])
    cut = has_start & (pool.piece_length == capacity)
    end[cut] = pool.starts[(pool.starts_offset + pool.starts_length - 1)[cut]]
    return begin, end


def _nearest_splits(
    pool: RecordBatch,
    key: NDArray[np.uint64],
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the pieces that can be split, and the start nearest to a place drawn in each.

    Starts and places are those between `begin` and `end`, neither included.
    """
    # Starts of one piece after the other, each as (piece, start): sorted as they stand.
    owner = np.repeat(np.arange(len(pool.starts_length)), pool.starts_length)
    listed = (owner << 16) | pool.starts
    pieces = np.arange(len(pool.starts_length)) << 16
    first = np.searchsorted(listed, pieces + begin, side="right")
    last = np.searchsorted(listed, pieces + end) - 1
    piece = np.flatnonzero(first <= last)
    first, last, begin, end = first[piece], last[piece], begin[piece], end[piece]
    bits = hash_of(Purpose.SPLIT, key[piece])
    place = begin + 1 + below(bits, end - begin - 1)
    above = np.clip(np.searchsorted(listed, (piece << 16) | place), first, last)
    before = np.maximum(above - 1, first)
    excess, lack = np.abs(pool.starts[above] - place), np.abs(place - pool.starts[before])
    coin = below(low_half(bits), 2) == 0
    upper = (excess < lack) | ((excess == lack) & coin)
    return piece, pool.starts[np.where(upper, above, before)]
