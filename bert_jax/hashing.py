"""Random draws as a pure function of their address: counter-based hashing, vectorised.

A draw is the hash of (seed, purpose, epoch, record, position, ...), so it depends on nothing that
was drawn before it: any example of any epoch can be made alone, in any process, in any order. The
mixing function is the finaliser of SplitMix64 with Stafford's variant 13 of its constants (Steele,
Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

Every constant here is part of the meaning of (corpus, seed): changing one changes all data drawn.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_32 = np.uint64(32)
_LOW_32 = np.uint64(0xFFFFFFFF)
_PERMUTATION_ROUNDS = 8


class Purpose(IntEnum):
    """What a draw is for; draws of different purposes are independent. Values never change."""

    SHUFFLE = 1
    EXAMPLE = 2
    SPLIT = 3
    PARTNER = 4
    LABEL = 5
    MASK_CHOICE = 6
    MASK_REPLACEMENT = 7
    BATCH_ORDER = 8
    MASK_SPAN = 9
    GROUP_ORDER = 10


def hash_of(*parts: ArrayLike) -> NDArray[np.uint64]:
    """Returns 64 well-mixed bits for every combination of the broadcast non-negative parts.

    Order matters, and the parts are absorbed from left to right: put the scalars first and the
    largest array last, so that only one round of mixing touches the full shape.
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = _mixed((state + _GAMMA) ^ np.asarray(part).astype(np.uint64))
    return state


def below(bits: NDArray[np.uint64], limit: ArrayLike) -> NDArray[np.int64]:
    """Returns integers in 0..limit-1 from the upper half of `bits`, for limits up to 2**32.

    Multiply and shift (Lemire 2019): a value's probability is off by at most limit / 2**32.
    """
    scaled = (bits >> _32) * np.asarray(limit).astype(np.uint64)
    return (scaled >> _32).astype(np.int64)


def low_half(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Moves the lower 32 bits up: a second, independent argument for `below`."""
    return bits << _32


def permuted(positions: NDArray[np.int64], size: int, key: ArrayLike) -> NDArray[np.int64]:
    """Returns where a pseudorandom permutation of 0..size-1 sends each of `positions`.

    A Feistel network on the fewest bits that hold `size`, walked until it lands below `size`
    (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): O(1) a position, and no
    table of the permutation exists. `key` names the permutation.
    """
    values = np.asarray(positions).astype(np.uint64)
    assert size > 0 and (values < size).all(), "positions lie in 0..size-1"
    num_bits = (size - 1).bit_length()
    round_keys = hash_of(key, np.arange(_PERMUTATION_ROUNDS))
    values = _feistel(values, num_bits, round_keys)
    while len(outside := np.flatnonzero(values >= size)):  # under half of them each time
        values[outside] = _feistel(values[outside], num_bits, round_keys)
    return values.astype(np.int64)


def _feistel(
    values: NDArray[np.uint64], num_bits: int, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """One pass of the network: the halves take turns to be masked by a hash of the other."""
    low_bits = np.uint64(num_bits - num_bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(num_bits // 2)) - np.uint64(1)
    high, low = values >> low_bits, values & low_mask
    for key in round_keys.reshape(-1, 2):
        low = low ^ (_mixed(high ^ key[0]) & low_mask)
        high = high ^ (_mixed(low ^ key[1]) & high_mask)
    return high << low_bits | low


def _mixed(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser, a bijection of 64 bits; works in place on the array it is given."""
    scratch = np.empty_like(state)
    for shift, multiplier in ((_SHIFT_1, _MULTIPLIER_1), (_SHIFT_2, _MULTIPLIER_2)):
        np.right_shift(state, shift, out=scratch)
        np.bitwise_xor(state, scratch, out=state)
        np.multiply(state, multiplier, out=state)
    np.right_shift(state, _SHIFT_3, out=scratch)
    np.bitwise_xor(state, scratch, out=state)
    return state
