"""Draw sentence pairs for next-sentence prediction and for sentence-order prediction.

Both decide which pieces are split; the second half is another piece's, or the halves are swapped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import RecordBatch, ranges
from bert_jax.hashing import Purpose, below, hash_of, low_half

# Splits drawn of each piece as possible partners. More bring lengths nearer, so less is cut off,
# but favour long pieces, which have more sentence starts to draw from, as partners. Measured with
# 2, 3 and 4 draws: 0.6, 0.4 and 0.4 % of the tokens are cut off in rows of 128, 0.8, 0.6 and 0.5 %
# in rows of 512, and boosted trees tell the label from lengths and ends no better than by chance.
DRAWS_PER_PIECE = 4

IS_NEXT = 0
IS_RANDOM = 1


@dataclass(frozen=True)
class Segments:
    """The segments A and B of pieces, as ranges of the pool's tokens; all [num_pieces] int64.

    Attributes:
        a_offset, a_length: where A is.
        b_offset, b_length: where B is; length 0 for a piece that is not split.
        label: IS_NEXT or IS_RANDOM, or `sentence_order`'s; 0 where not split.
    """

    a_offset: NDArray[np.int64]
    a_length: NDArray[np.int64]
    b_offset: NDArray[np.int64]
    b_length: NDArray[np.int64]
    label: NDArray[np.int64]

    def take(self, pieces: NDArray[np.int64]) -> Segments:
        """Returns the segments of these pieces, in this order."""
        return Segments(*(getattr(self, field.name)[pieces] for field in fields(self)))


def whole_pieces(pool: RecordBatch) -> Segments:
    """Returns every piece as one segment A."""
    nothing = np.zeros_like(pool.piece_length)
    return Segments(pool.piece_offset, pool.piece_length, nothing, nothing, nothing)


def draw_pairs(
    pool: RecordBatch,
    record_group: NDArray[np.int64],
    record_key: NDArray[np.uint64],
    capacity: int,
) -> Segments:
    """Splits the pieces of a pool and draws their second segments.

    Args:
        record_group: [num_records] numbers below 32,768; partners come from the same group.
        record_key: [num_records] hash of all that the draws of a record may depend on.
        capacity: tokens of the longest piece: one as long was cut there, whatever stood there.

    Returns:
        Segments of all pieces. A piece stays whole if no sentence starts inside it or its group
        holds no other document's split piece that ends as it does.
    """
    key = piece_keys(pool, record_key)
    group = 2 * record_group[pool.piece_record] + (pool.piece_length == capacity)
    piece, splits = _draw_splits(pool, key)
    own_rest = pool.piece_length[piece] - splits[0]
    partner_offset, partner_rest = _nearest_partner(pool, piece, splits, group[piece], key[piece])

    paired = partner_rest > 0
    piece, own_rest, split = piece[paired], own_rest[paired], splits[0][paired]
    partner_offset = partner_offset[paired]
    length = np.minimum(own_rest, partner_rest[paired])
    own_offset = pool.piece_offset[piece] + split
    random = below(hash_of(key[piece], Purpose.LABEL), 2) == IS_RANDOM
    random &= ~equal_tokens(pool.tokens, own_offset, partner_offset, length, random)

    a_length = pool.piece_length.copy()
    a_length[piece] = split
    b_offset, b_length, label = np.zeros((3, len(a_length)), np.int64)
    b_offset[piece] = np.where(random, partner_offset, own_offset)
    b_length[piece] = length
    label[piece] = np.where(random, IS_RANDOM, IS_NEXT)
    return Segments(pool.piece_offset, a_length, b_offset, b_length, label)


def piece_keys(pool: RecordBatch, record_key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash for every piece, from its record's and its place in the record."""
    within = np.arange(len(pool.piece_record)) - np.searchsorted(
        pool.piece_record, pool.piece_record
    )
    return hash_of(record_key[pool.piece_record], within)


def _draw_splits(
    pool: RecordBatch, key: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the pieces that can be split, and [DRAWS_PER_PIECE, pieces] splits of them.

    A split is one of the sentence starts other than offset 0, all equally likely.
    """
    has_start = np.flatnonzero(pool.starts_length > 0)
    skip = np.zeros_like(pool.starts_length)
    skip[has_start] = pool.starts[pool.starts_offset[has_start]] == 0
    usable = pool.starts_length - skip
    piece = np.flatnonzero(usable > 0)
    draws = np.arange(DRAWS_PER_PIECE)[:, None]
    choice = below(hash_of(Purpose.SPLIT, draws, key[piece]), usable[piece])
    return piece, pool.starts[(pool.starts_offset + skip)[piece] + choice]


def _nearest_partner(
    pool: RecordBatch,
    piece: NDArray[np.int64],
    splits: NDArray[np.int64],
    group: NDArray[np.int64],
    key: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (offset in tokens, length) of each piece's partner; length 0 where there is none.

    Candidates are sorted by (group, length, hash). The nearest lengths are then the neighbours of
    the place where a piece itself would stand; a neighbour from the same document is passed over
    in one step, to the end of its run of candidates of that document.
    """
    if not len(piece):
        return piece, piece
    rest = pool.piece_length[piece] - splits
    draws = np.arange(DRAWS_PER_PIECE)[:, None]
    order_bits = hash_of(Purpose.PARTNER, draws, key)
    sort_key = _sort_key(group, rest, order_bits).ravel()
    order = np.argsort(sort_key, kind="stable")
    candidate = np.tile(piece, DRAWS_PER_PIECE)[order]
    rest_of, split_of = rest.ravel()[order], splits.ravel()[order]
    group_of = np.tile(group, DRAWS_PER_PIECE)[order]
    document_of, document = pool.piece_document[candidate], pool.piece_document[piece]

    query_bits = hash_of(Purpose.PARTNER, DRAWS_PER_PIECE, key)
    above = np.searchsorted(sort_key[order], _sort_key(group, rest[0], query_bits))
    run_begin, run_end = _runs(document_of)
    last = len(candidate) - 1

    def neighbour(at: NDArray[np.int64], past_run: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the candidate at `at`, or the next of another document; -1 if out of group."""
        inside = (at >= 0) & (at <= last)
        at = np.clip(at, 0, last)
        at = np.where(document_of[at] == document, past_run[at], at)
        inside &= (at >= 0) & (at <= last)
        at = np.clip(at, 0, last)
        return np.where(inside & (group_of[at] == group), at, -1)

    longer, shorter = neighbour(above, run_end), neighbour(above - 1, run_begin - 1)
    too_far = np.int64(1 << 32)
    excess = np.where(longer < 0, too_far, rest_of[longer] - rest[0])
    lack = np.where(shorter < 0, too_far, rest[0] - rest_of[shorter])
    coin = below(low_half(query_bits), 2) == 0
    chosen = np.where((excess < lack) | ((excess == lack) & coin), longer, shorter)
    found = np.minimum(excess, lack) < too_far
    offset = pool.piece_offset[candidate[chosen]] + split_of[chosen]
    return np.where(found, offset, 0), np.where(found, rest_of[chosen], 0)


def _sort_key(
    group: NDArray[np.int64], rest: NDArray[np.int64], bits: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Orders by group, then length (both 16 bits), then hash."""
    assert group.max() < 1 << 16 and rest.max() < 1 << 16
    major = (group.astype(np.uint64) << np.uint64(16)) | rest.astype(np.uint64)
    return (major << np.uint64(32)) | (bits >> np.uint64(32))


def _runs(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns, for every place, where its run of equal values begins, and one past its end."""
    border = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = np.concatenate([[0], border, [len(values)]])
    run = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return edges[run], edges[run + 1]


def equal_tokens(
    tokens: NDArray[np.int32],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    length: NDArray[np.int64],
    asked: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Returns where two ranges of equal length hold the same tokens; False where not asked.

    Few ranges share their first token, so only those are compared one by one.
    """
    equal = asked & (tokens[first] == tokens[second])
    for at in np.flatnonzero(equal).tolist():
        one, other, count = first[at], second[at], length[at]
        equal[at] = np.array_equal(tokens[one : one + count], tokens[other : other + count])
    return equal


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
