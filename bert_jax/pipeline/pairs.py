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
DRAWS_PER_FRAGMENT = 4

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

    def take(self, fragments: NDArray[np.int64]) -> Segments:
        """Returns the segments of these pieces, in this order."""
        return Segments(*(getattr(self, field.name)[fragments] for field in fields(self)))


def whole_fragments(pool: RecordBatch) -> Segments:
    """Returns every piece as one segment A."""
    nothing = np.zeros_like(pool.fragment_length)
    return Segments(pool.fragment_offset, pool.fragment_length, nothing, nothing, nothing)


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
    key = fragment_keys(pool, record_key)
    group = 2 * record_group[pool.fragment_record] + (pool.fragment_length == capacity)
    fragment, splits = _draw_splits(pool, key)
    own_rest = pool.fragment_length[fragment] - splits[0]
    partner_offset, partner_rest = _nearest_partner(
        pool, fragment, splits, group[fragment], key[fragment]
    )

    paired = partner_rest > 0
    fragment, own_rest, split = fragment[paired], own_rest[paired], splits[0][paired]
    partner_offset = partner_offset[paired]
    length = np.minimum(own_rest, partner_rest[paired])
    own_offset = pool.fragment_offset[fragment] + split
    random = below(hash_of(key[fragment], Purpose.LABEL), 2) == IS_RANDOM
    random &= ~equal_tokens(pool.tokens, own_offset, partner_offset, length, random)

    a_length = pool.fragment_length.copy()
    a_length[fragment] = split
    b_offset, b_length, label = np.zeros((3, len(a_length)), np.int64)
    b_offset[fragment] = np.where(random, partner_offset, own_offset)
    b_length[fragment] = length
    label[fragment] = np.where(random, IS_RANDOM, IS_NEXT)
    return Segments(pool.fragment_offset, a_length, b_offset, b_length, label)


def fragment_keys(pool: RecordBatch, record_key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns a hash for every piece, from its record's and its place in the record."""
    within = np.arange(len(pool.fragment_record)) - np.searchsorted(
        pool.fragment_record, pool.fragment_record
    )
    return hash_of(record_key[pool.fragment_record], within)


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
    fragment = np.flatnonzero(usable > 0)
    draws = np.arange(DRAWS_PER_FRAGMENT)[:, None]
    choice = below(hash_of(Purpose.SPLIT, draws, key[fragment]), usable[fragment])
    return fragment, pool.starts[(pool.starts_offset + skip)[fragment] + choice]


def _nearest_partner(
    pool: RecordBatch,
    fragment: NDArray[np.int64],
    splits: NDArray[np.int64],
    group: NDArray[np.int64],
    key: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns (offset in tokens, length) of each piece's partner; length 0 where there is none.

    Candidates are sorted by (group, length, hash). The nearest lengths are then the neighbours of
    the place where a piece itself would stand; a neighbour from the same document is passed over
    in one step, to the end of its run of candidates of that document.
    """
    if not len(fragment):
        return fragment, fragment
    rest = pool.fragment_length[fragment] - splits
    draws = np.arange(DRAWS_PER_FRAGMENT)[:, None]
    order_bits = hash_of(Purpose.PARTNER, draws, key)
    sort_key = _sort_key(group, rest, order_bits).ravel()
    order = np.argsort(sort_key, kind="stable")
    candidate = np.tile(fragment, DRAWS_PER_FRAGMENT)[order]
    rest_of, split_of = rest.ravel()[order], splits.ravel()[order]
    group_of = np.tile(group, DRAWS_PER_FRAGMENT)[order]
    document_of, document = pool.fragment_document[candidate], pool.fragment_document[fragment]

    query_bits = hash_of(Purpose.PARTNER, DRAWS_PER_FRAGMENT, key)
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
    offset = pool.fragment_offset[candidate[chosen]] + split_of[chosen]
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
    key = fragment_keys(pool, record_key)
    begin, end = _whole_sentences(pool, capacity, spaces_are_text=spaces_are_text)
    fragment, split = _nearest_splits(pool, key, begin, end)
    early, late = split - begin[fragment], end[fragment] - split
    first, second = (
        pool.fragment_offset[fragment] + begin[fragment],
        pool.fragment_offset[fragment] + split,
    )
    swapped = below(hash_of(key[fragment], Purpose.LABEL), 2) == IS_SWAPPED
    swapped &= ~equal_tokens(pool.tokens, first, second, early, swapped & (early == late))

    tokens = pool.tokens.copy()
    begins = np.stack([second, first], axis=1)[swapped].ravel()
    lengths = np.stack([late, early], axis=1)[swapped].ravel()
    tokens[ranges(first[swapped], (early + late)[swapped])] = pool.tokens[ranges(begins, lengths)]

    a_length = pool.fragment_length.copy()
    a_length[fragment] = begin[fragment] + np.where(swapped, late, early)
    label = np.zeros_like(a_length)
    label[fragment] = np.where(swapped, IS_SWAPPED, IN_ORDER)
    b_offset, b_length = pool.fragment_offset + a_length, pool.fragment_length - a_length
    return Segments(pool.fragment_offset, a_length, b_offset, b_length, label), tokens


def _whole_sentences(
    pool: RecordBatch, capacity: int, *, spaces_are_text: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns where in each piece the first sentence that may move begins, and the last ends."""
    has_start = pool.starts_length > 0
    begin, end = pool.fragment_length.copy(), pool.fragment_length.copy()
    begin[has_start] = pool.starts[pool.starts_offset[has_start]]
    if spaces_are_text:
        several = pool.starts_length > 1
        after_first = pool.starts_offset[several] + 1
        begin[several] = np.where(begin[several], begin[several], pool.starts[after_first])
    cut = has_start & (pool.fragment_length == capacity)
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
    fragments = np.arange(len(pool.starts_length)) << 16
    first = np.searchsorted(listed, fragments + begin, side="right")
    last = np.searchsorted(listed, fragments + end) - 1
    fragment = np.flatnonzero(first <= last)
    first, last, begin, end = first[fragment], last[fragment], begin[fragment], end[fragment]
    bits = hash_of(Purpose.SPLIT, key[fragment])
    place = begin + 1 + below(bits, end - begin - 1)
    above = np.clip(np.searchsorted(listed, (fragment << 16) | place), first, last)
    before = np.maximum(above - 1, first)
    excess, lack = np.abs(pool.starts[above] - place), np.abs(place - pool.starts[before])
    coin = below(low_half(bits), 2) == 0
    upper = (excess < lack) | ((excess == lack) & coin)
    return fragment, pool.starts[np.where(upper, above, before)]
