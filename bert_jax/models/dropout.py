"""Implement dropout with masks that are hashes of a key and the element's position.

Only the key is stored for the backward pass, which recomputes the mask from it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.barriers import gpu_barrier
from bert_jax.models.options import Ops, with_ops

# Multipliers from Wellons' "lowbias32" integer hash (2018), the least biased pair that he found.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B
_GOLDEN = 0x9E3779B9


def _mix(x: jax.Array) -> jax.Array:
    """Hash uint32 words bijectively, so that every input bit affects every output bit."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


def _iota(shape: tuple[int, ...], dims: range) -> jax.Array:
    """Return row-major indices over `dims` of `shape`, broadcastable to `shape`."""
    index_shape = tuple(size if dim in dims else 1 for dim, size in enumerate(shape))
    index = jnp.zeros(index_shape, jnp.uint32)
    for dim in dims:
        index = index * jnp.uint32(shape[dim])
        index = index + jax.lax.broadcasted_iota(jnp.uint32, index_shape, dim)
    return index


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """Return a mask whose elements are independently True with probability 1 - rate.

    The probability is accurate to within 2^-32. Each element depends only on the key and the
    element's *global* index, so the mask is the same under any sharding. The hash of an element is
    computed from a 32-bit index within the last two dims and from a 64-bit state, which is a hash
    of the key and of the index within the leading dims. The two halves of the state are mixed in at
    different points, so that no matrix's mask is a shifted copy of another's.

    Args:
      key: a typed JAX key (`jax.random.key`).
      rate: the probability that an element is False, in [0, 1).
      shape: the shape of the mask, of any rank, with fewer than 2^32 elements in the last two dims
        and fewer than 2^32 in the leading dims.
    """
    inner = max(0, len(shape) - 2)
    assert math.prod(shape[inner:]) < 2**32 and math.prod(shape[:inner]) < 2**32
    states = matrix_states(key, shape[:inner])
    index = _iota(shape, range(inner, len(shape)))
    first, second = (state.reshape(*shape[:inner], *[1] * (len(shape) - inner)) for state in states)
    return keep_elements(index, first, second, rate)


def matrix_states(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Return the hash state of each matrix of a mask: two uint32 arrays of the given shape.

    Together with `keep_elements`, this function lets a fused kernel compute the part of a
    `keep_mask` that it needs.

    Args:
      key: see `keep_mask`.
      shape: the leading dims of the mask, without the last two.
    """
    words = jax.random.key_data(key).astype(jnp.uint32).ravel()
    index = _iota(shape, range(len(shape)))
    first = _mix(_mix(index ^ words[0]) ^ words[-1])
    return first, _mix(first + jnp.uint32(_GOLDEN) ^ words[0])


def keep_elements(index: jax.Array, first: jax.Array, second: jax.Array, rate: float) -> jax.Array:
    """Return the elements of a `keep_mask` at the given indices.

    Args:
      index: uint32 row-major indices into the last two dims of the mask.
      first: the first hash state of the matrix that each index belongs to, broadcastable to
        `index`.
      second: the second hash state.
      rate: see `keep_mask`.
    """
    return keep_counters(hash_counters(index), first, second, rate)


def hash_counters(index: jax.Array) -> jax.Array:
    """Return the part of the hash of `keep_elements` that depends only on the index.

    A kernel that computes multiple matrices of a mask needs to call this function only once.
    """
    bits = index * jnp.uint32(_GOLDEN)
    return bits ^ (bits >> 16)


def keep_counters(
    counters: jax.Array, first: jax.Array, second: jax.Array, rate: float
) -> jax.Array:
    """Return the elements of a `keep_mask` at the indices passed to `hash_counters`.

    Args:
      counters: the result of `hash_counters`.
      first: see `keep_elements`.
      second: see `keep_elements`.
      rate: see `keep_mask`.
    """
    # Each state s is mixed in before the bits are shifted. Since (x ^ s) ^ ((x ^ s) >> n) equals
    # (x ^ (x >> n)) ^ (s ^ (s >> n)), the state can be shifted here, once per matrix instead of
    # once per element. A GPU then combines the three terms of each element in one instruction.
    first, second = first ^ (first >> 16), second ^ (second >> 15)
    bits = (counters ^ first) * jnp.uint32(_MULTIPLIER_1)
    bits = (bits ^ (bits >> 15) ^ second) * jnp.uint32(_MULTIPLIER_2)
    bits = bits ^ (bits >> 16)
    return bits >= jnp.uint32(round(rate * 2**32))


# A function with the arguments of `keep_mask`, which returns a mask of the given shape.
KeepMask = Callable[[jax.Array, float, tuple[int, ...]], jax.Array]


def dropout(
    x: jax.Array,
    rate: float,
    key: jax.Array | None,
    ops: Ops = "fast",
    mask: KeepMask = keep_mask,
) -> jax.Array:
    """Zero elements with probability `rate` and scale the rest by 1 / (1 - rate).

    If `key` is None (in evaluation) or `rate` is 0, the result is `x`. With "fast" `ops`, the
    backward pass recomputes the mask; with "plain" ops, JAX stores it.

    Source: Srivastava et al. 2014.
    """
    if key is None or rate == 0.0:
        return x
    return with_ops(_dropout, ops)(x, rate, key, mask)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 3))
def _dropout(x: jax.Array, rate: float, key: jax.Array, mask: KeepMask) -> jax.Array:
    scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(mask(key, rate, x.shape), x * scale, jnp.zeros((), x.dtype))


def _dropout_forward(
    x: jax.Array, rate: float, key: jax.Array, mask: KeepMask
) -> tuple[jax.Array, jax.Array]:
    return _dropout(x, rate, key, mask), key


def _dropout_backward(
    rate: float, mask: KeepMask, key: jax.Array, grad: jax.Array
) -> tuple[jax.Array, None]:
    words = gpu_barrier(jax.random.key_data(key))
    key = jax.random.wrap_key_data(words, impl=jax.random.key_impl(key))
    return _dropout(grad, rate, key, mask), None


_dropout.defvjp(_dropout_forward, _dropout_backward)
