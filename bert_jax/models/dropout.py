"""Dropout whose mask is a hash of (key, position): nothing is stored between the passes."""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp

# The multipliers of Wellons' "lowbias32" integer hash (2018), the lowest-bias pair of its search.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B
_GOLDEN = 0x9E3779B9


def _mix(x: jax.Array) -> jax.Array:
    """Full avalanche of uint32 words (a bijection)."""
    x = (x ^ (x >> 16)) * jnp.uint32(_MULTIPLIER_1)
    x = (x ^ (x >> 15)) * jnp.uint32(_MULTIPLIER_2)
    return x ^ (x >> 16)


def _iota(shape: tuple[int, ...], dims: range) -> jax.Array:
    """Row-major index over `dims` of `shape`, broadcastable to `shape`."""
    index_shape = tuple(size if dim in dims else 1 for dim, size in enumerate(shape))
    index = jnp.zeros(index_shape, jnp.uint32)
    for dim in dims:
        index = index * jnp.uint32(shape[dim])
        index = index + jax.lax.broadcasted_iota(jnp.uint32, index_shape, dim)
    return index


def keep_mask(key: jax.Array, rate: float, shape: tuple[int, ...]) -> jax.Array:
    """True with probability 1 - rate (to 2^-32), independently for every element of `shape`.

    The value at a position depends on the key and the *global* index alone, so it is the same
    under any sharding. The last two dims are counted within 32 bits; every index of the leading
    dims owns 64 bits of hashed state, injected in two places, so no two rows run through
    overlapping counters.

    Args:
      key: a typed JAX key (`jax.random.key`).
      rate: the probability of False, in [0, 1).
      shape: any rank; the last two dims hold fewer than 2^32 elements, as do the leading ones.
    """
    inner = max(0, len(shape) - 2)
    assert math.prod(shape[inner:]) < 2**32 and math.prod(shape[:inner]) < 2**32
    words = jax.random.key_data(key).astype(jnp.uint32).ravel()
    outer_index = _iota(shape, range(0, inner))
    row_1 = _mix(_mix(outer_index ^ words[0]) ^ words[-1])
    row_2 = _mix(row_1 + jnp.uint32(_GOLDEN) ^ words[0])
    bits = (_iota(shape, range(inner, len(shape))) * jnp.uint32(_GOLDEN)) ^ row_1
    bits = (bits ^ (bits >> 16)) * jnp.uint32(_MULTIPLIER_1)
    bits = bits ^ row_2
    bits = (bits ^ (bits >> 15)) * jnp.uint32(_MULTIPLIER_2)
    bits = bits ^ (bits >> 16)
    return bits >= jnp.uint32(round(rate * 2**32))


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes elements with probability `rate` and scales the rest by 1 / (1 - rate).

    The identity when `key` is None (evaluation) or `rate` is 0. The backward pass hashes the
    mask again instead of reading a stored one. Srivastava et al. 2014.
    """
    if key is None or rate == 0.0:
        return x
    return _dropout(x, rate, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(keep_mask(key, rate, x.shape), x * scale, jnp.zeros((), x.dtype))


def _dropout_forward(x: jax.Array, rate: float, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _dropout(x, rate, key), key


def _dropout_backward(rate: float, key: jax.Array, grad: jax.Array) -> tuple[jax.Array, None]:
    return _dropout(grad, rate, key), None


_dropout.defvjp(_dropout_forward, _dropout_backward)
