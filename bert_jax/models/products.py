"""Matrix products that accumulate and return float32 yet stay in the compute dtype backward."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def einsum_float32(subscripts: str, left: jax.Array, right: jax.Array) -> jax.Array:
    """`jnp.einsum` of two arrays of one dtype with a float32 result.

    Differentiated as it stands, the float32 cotangent would meet bfloat16 operands, and both
    products of the backward pass would run in float32. Here the cotangent is rounded to the
    operands' dtype first, as it is in every other product of the model.
    """
    return jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)


def _forward(
    subscripts: str, left: jax.Array, right: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    assert left.dtype == right.dtype, (left.dtype, right.dtype)
    return einsum_float32(subscripts, left, right), (left, right)


def _backward(
    subscripts: str, operands: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    left, right = operands
    cotangent = cotangent.astype(left.dtype)
    to_left = jax.linear_transpose(lambda x: jnp.einsum(subscripts, x, right), left)
    to_right = jax.linear_transpose(lambda x: jnp.einsum(subscripts, left, x), right)
    return *to_left(cotangent), *to_right(cotangent)


einsum_float32.defvjp(_forward, _backward)
