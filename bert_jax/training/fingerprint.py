"""A checksum of parameters, computed where they lie."""

from __future__ import annotations

import hashlib
import json

import jax
import jax.numpy as jnp

from bert_jax.models.parameters import Parameters


def fingerprint(params: Parameters) -> str:
    """SHA-256 over the names, shapes and 64-bit checksums of float32 parameters.

    The same however they are split over devices and processes. It tells parameters that were
    trained otherwise, not ones that were made to have the same.
    """
    sums = jax.device_get(jax.jit(lambda params: jax.tree.map(_checksum, params))(params))
    content = {
        name: [list(params[name].shape), *(int(value) for value in found)]
        for name, found in sums.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sums modulo 2^32 of the bits times odd numbers of their place: order does not matter."""
    bits = jax.lax.bitcast_convert_type(array.astype(jnp.float32), jnp.uint32)
    place = jnp.zeros(array.shape, jnp.uint32)
    for dim, size in enumerate(array.shape):
        place = place * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, array.shape, dim)
    # Multipliers of Knuth and of xxHash; any large odd ones would do.
    first, second = (
        jnp.sum(bits * (place * jnp.uint32(factor) | jnp.uint32(1)), dtype=jnp.uint32)
        for factor in (2_654_435_761, 2_246_822_519)
    )
    return first, second
