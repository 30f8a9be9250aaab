"""Use vectorized hashing to draw random numbers that depend only on where they are used.

Each number is a hash of (seed, purpose, epoch, record, position, ...) and does not depend on
previously drawn numbers, so any example from any epoch can be generated on its own, in any process
and in any order. The mixing function is the finalizer of SplitMix64 with Stafford's "variant 13"
constants (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).

Changing any constant in this module changes all data drawn for a given corpus and seed.
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
    """The purpose of a random number. Numbers for different purposes are independent.

    The integers assigned to the purposes must never change.
    """

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
    """Broadcast non-negative integers against each other, and hash them to 64 well-mixed bits.

    The order of the arguments matters. They are mixed in from left to right, so pass scalars first
    and the largest array last; then only one round of mixing runs on the full shape.
    """
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = _mix((state + _GAMMA) ^ np.asarray(part).astype(np.uint64))
    return state


def below(bits: NDArray[np.uint64], limit: ArrayLike) -> NDArray[np.int64]:
    """Map the upper half of `bits` to integers from 0 to limit - 1.

    This uses multiply-and-shift (Lemire 2019), whose relative error in the probability of each
    integer is at most limit / 2**32. The limit must not exceed 2**32.
    """
    scaled = (bits >> _32) * np.asarray(limit).astype(np.uint64)
    return (scaled >> _32).astype(np.int64)


def low_half(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Move the lower 32 bits to the upper half, to get a second, independent input for `below`."""
    return bits << _32


def permuted(positions: NDArray[np.int64], size: int, key: ArrayLike) -> NDArray[np.int64]:
    """Map each of `positions` with a pseudorandom permutation of the integers from 0 to size - 1.

    A Feistel network on just enough bits to represent size - 1 is applied repeatedly until the
    result is less than `size` (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    This takes O(1) time per position and does not store the permutation.

    Args:
        positions: integers from 0 to size - 1.
        size: the number of positions that are permuted.
        key: a number that selects the permutation.
    """
    values = np.asarray(positions).astype(np.uint64)
    assert size > 0 and (values < size).all(), "positions must be less than size"
    num_bits = (size - 1).bit_length()
    round_keys = hash_of(key, np.arange(_PERMUTATION_ROUNDS))
    values = _feistel(values, num_bits, round_keys)
    # On average, fewer than half of the values exceed size - 1.
    while len(outside := np.flatnonzero(values >= size)):
        values[outside] = _feistel(values[outside], num_bits, round_keys)
    return values.astype(np.int64)


def _feistel(
    values: NDArray[np.uint64], num_bits: int, round_keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Apply the network once: repeatedly XOR each half with a hash of the other half."""
    low_bits = np.uint64(num_bits - num_bits // 2)
    low_mask = (np.uint64(1) << low_bits) - np.uint64(1)
    high_mask = (np.uint64(1) << np.uint64(num_bits // 2)) - np.uint64(1)
    high, low = values >> low_bits, values & low_mask
    for key in round_keys.reshape(-1, 2):
        low = low ^ (_mix(high ^ key[0]) & low_mask)
        high = high ^ (_mix(low ^ key[1]) & high_mask)
    return high << low_bits | low


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finalizer, a bijection on 64 bits, to `state` in place and return it."""
    scratch = np.empty_like(state)
    for shift, multiplier in ((_SHIFT_1, _MULTIPLIER_1), (_SHIFT_2, _MULTIPLIER_2)):
        np.right_shift(state, shift, out=scratch)
        np.bitwise_xor(state, scratch, out=state)
        np.multiply(state, multiplier, out=state)
    np.right_shift(state, _SHIFT_3, out=scratch)
    np.bitwise_xor(state, scratch, out=state)
    return state
