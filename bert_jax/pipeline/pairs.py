"""Draw sentence pairs for next-sentence prediction and for sentence-order prediction.

Both objectives split fragments in two. In next-sentence prediction, the second segment may come
from another fragment; in sentence-order prediction, the two halves may be swapped.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import RecordBatch, ranges
from bert_jax.hashing import Purpose, below, hash_of, low_half

# The number of random splits per fragment that become candidate partners. With more draws, lengths
# match more closely, so less text is cut off. But long fragments, which have more sentence starts,
# then become partners more often. With 2 draws, 0.6% of the tokens are cut off in rows of 128
# tokens, and 0.8% in rows of 512. With 3 draws, these are 0.4% and 0.6%; with 4 draws, 0.4% and
# 0.5%. Boosted trees cannot predict the label from the lengths and endings of the segments any
# better than chance.
DRAWS_PER_FRAGMENT = 4

IS_NEXT = 0
IS_RANDOM = 1


@dataclass(frozen=True)
class Segments:
    """The segments A and B of each fragment, as ranges of the pool's tokens.

    Attributes:
      a_offset: [num_fragments] int64, the offset of A's first token.
      a_length: [num_fragments] int64, the number of tokens in A.
      b_offset: [num_fragments] int64, the offset of B's first token.
      b_length: [num_fragments] int64, the number of tokens in B; 0 for a fragment that is not
        split.
      label: [num_fragments] int64, IS_NEXT or IS_RANDOM, or IN_ORDER or IS_SWAPPED; 0 for a
        fragment that is not split.
    """

    a_offset: NDArray[np.int64]
    a_length: NDArray[np.int64]
    b_offset: NDArray[np.int64]
    b_length: NDArray[np.int64]
    label: NDArray[np.int64]

    def take(self, fragments: NDArray[np.int64]) -> Segments:
        """Return the segments of these fragments, in the given order."""
        return Segments(*(getattr(self, field.name)[fragments] for field in fields(self)))


def whole_fragments(pool: RecordBatch) -> Segments:
    """Return each fragment unsplit, as a segment A without a segment B."""
    zeros = np.zeros_like(pool.fragment_length)
    return Segments(pool.fragment_offset, pool.fragment_length, zeros, zeros, zeros)


def draw_pairs(
    pool: RecordBatch,
    record_group: NDArray[np.int64],
    record_key: NDArray[np.uint64],
    capacity: int,
) -> Segments:
    """Split the fragments of a pool and draw their second segments.

    Args:
      pool: the decoded records.
      record_group: [num_records] the group of each record, less than 32,768. Partners come from the
        same group.
      record_key: [num_records] a hash of everything that a record's random draws may depend on.
      capacity: the maximum number of tokens in a fragment. A fragment of this length ends because
        its record is full, possibly in the middle of a sentence.

    Returns:
      The segments of all fragments. A fragment is not split if no sentence starts inside it, or if
      its group has no suitable partner. A partner must be from another document, must be splittable
      itself, and must fill its record if and only if this fragment does.
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
    """Return a hash for each fragment, based on its record's hash and its index in the record."""
    within = np.arange(len(pool.fragment_record)) - np.searchsorted(
        pool.fragment_record, pool.fragment_record
    )
    return hash_of(record_key[pool.fragment_record], within)


def _draw_splits(
    pool: RecordBatch, key: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the fragments that can be split, and [DRAWS_PER_FRAGMENT, fragments] random splits.

    A split is drawn uniformly from a fragment's sentence starts other than offset 0.
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
    """Return the token offset and length of each fragment's partner; both are 0 if it has none.

    Candidates are sorted by (group, length, hash), so the candidates with the closest lengths are
    next to the place where the fragment itself would be inserted. If a neighbor of this place is
    from the fragment's own document, the whole run of candidates from that document is skipped.
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

    def neighbor(at: NDArray[np.int64], past_run: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return `at`, or `past_run[at]` if candidate `at` is from the fragment's document.

        If the resulting position is outside the group, the result is -1.
        """
        inside = (at >= 0) & (at <= last)
        at = np.clip(at, 0, last)
        at = np.where(document_of[at] == document, past_run[at], at)
        inside &= (at >= 0) & (at <= last)
        at = np.clip(at, 0, last)
        return np.where(inside & (group_of[at] == group), at, -1)

    longer, shorter = neighbor(above, run_end), neighbor(above - 1, run_begin - 1)
    too_far = np.int64(1 << 32)
    excess = np.where(longer < 0, too_far, rest_of[longer] - rest[0])
    lack = np.where(shorter < 0, too_far, rest[0] - rest_of[shorter])
    coin = below(low_half(query_bits), 2) == 0
    chosen = np.where((excess < lack) | ((excess == lack) & coin), longer, shorter)
    exists = np.minimum(excess, lack) < too_far
    offset = pool.fragment_offset[candidate[chosen]] + split_of[chosen]
    return np.where(exists, offset, 0), np.where(exists, rest_of[chosen], 0)


def _sort_key(
    group: NDArray[np.int64], rest: NDArray[np.int64], bits: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return keys that sort by group, then length (16 bits each), then hash."""
    assert group.max() < 1 << 16 and rest.max() < 1 << 16
    major = (group.astype(np.uint64) << np.uint64(16)) | rest.astype(np.uint64)
    return (major << np.uint64(32)) | (bits >> np.uint64(32))


def _runs(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the start and the end of the run of equal values around each position."""
    border = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = np.concatenate([[0], border, [len(values)]])
    run = np.repeat(np.arange(len(edges) - 1), np.diff(edges))
    return edges[run], edges[run + 1]


def equal_tokens(
    tokens: NDArray[np.int32],
    first: NDArray[np.int64],
    second: NDArray[np.int64],
    length: NDArray[np.int64],
    requested: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """Return, for each pair of ranges, whether it is `requested` and both have the same tokens.

    The Python loop is short, since it covers only the few pairs with the same first token.
    """
    equal = requested & (tokens[first] == tokens[second])
    for at in np.flatnonzero(equal).tolist():
        a, b, count = first[at], second[at], length[at]
        equal[at] = np.array_equal(tokens[a : a + count], tokens[b : b + count])
    return equal


IN_ORDER = 0
IS_SWAPPED = 1


def draw_orders(
    pool: RecordBatch, record_key: NDArray[np.uint64], capacity: int, *, spaces_are_text: bool
) -> tuple[Segments, NDArray[np.int32]]:
    """Split each fragment of a pool in two, and choose at random which half comes first.

    Args:
      pool: the decoded records.
      record_key: [num_records] a hash of everything that a record's random draws may depend on.
      capacity: the maximum number of tokens in a fragment. A fragment of this length may end with
        an incomplete sentence.
      spaces_are_text: whether a sentence's tokens depend on whether a space precedes it.

    Returns:
      (segments, tokens): the segments of all fragments, and the tokens that their offsets refer to.
      These are the pool's tokens with the halves of swapped fragments exchanged. A fragment without
      two complete sentences is not split.
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
    """Return the start of each fragment's first complete sentence and the end of its last one."""
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
    """Return the fragments that can be split, and the sentence start at which each is split.

    This is the sentence start nearest to a random position. Both the starts and the positions are
    strictly between `begin` and `end`.
    """
    # Combine fragment and start into one key for each sentence start. The keys are already sorted.
    owner = np.repeat(np.arange(len(pool.starts_length)), pool.starts_length)
    listed = (owner << 16) | pool.starts
    fragments = np.arange(len(pool.starts_length)) << 16
    first = np.searchsorted(listed, fragments + begin, side="right")
    last = np.searchsorted(listed, fragments + end) - 1
    fragment = np.flatnonzero(first <= last)
    first, last, begin, end = first[fragment], last[fragment], begin[fragment], end[fragment]
    bits = hash_of(Purpose.SPLIT, key[fragment])
    position = begin + 1 + below(bits, end - begin - 1)
    above = np.clip(np.searchsorted(listed, (fragment << 16) | position), first, last)
    before = np.maximum(above - 1, first)
    excess, lack = np.abs(pool.starts[above] - position), np.abs(position - pool.starts[before])
    coin = below(low_half(bits), 2) == 0
    upper = (excess < lack) | ((excess == lack) & coin)
    return fragment, pool.starts[np.where(upper, above, before)]
