"""The model's matrix products: laid out for their backward passes, accumulated in float32."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp


def matrix_product(
    x: jax.Array, kernel: jax.Array, dimension_numbers: jax.lax.DotDimensionNumbers, **options: Any
) -> jax.Array:
    """`jax.lax.dot_general` of `x` [..., in] and `kernel` [in, out] as of two matrices.

    The kernel's gradient contracts all leading dims of `x`. Where they are one, XLA's CPU compiler
    reads both operands as they lie; where they are two, it first transposes a copy of the larger:
    30 ms against 9 for 32 x 128 tokens of 256 features on a [256, 1024] kernel (2 cores of a
    Xeon, 2026-11, as all times in this file).
    """
    assert dimension_numbers == (((x.ndim - 1,), (0,)), ((), ())), dimension_numbers
    rows = x.reshape(-1, x.shape[-1])
    product = jax.lax.dot_general(rows, kernel, (((1,), (0,)), ((), ())), **options)
    return product.reshape(*x.shape[:-1], kernel.shape[1])


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


@jax.custom_vjp
def affine_float32(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """`x` [rows, dim] on the rows of `table` [classes, dim] plus `bias` [classes], in float32.

    Differentiated like `einsum_float32`. The bias gradient is a product with ones, of the same
    rounded cotangent that the other two products read: as a sum over the rows of 640 x 30,522
    logits it took XLA's CPU code longer (48 ms) than either of them (20 and 27).
    """
    return einsum_float32("nd,vd->nv", x, table) + bias


def _affine_forward(
    x: jax.Array, table: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    assert x.dtype == table.dtype, (x.dtype, table.dtype)
    return affine_float32(x, table, bias), (x, table, bias)


def _affine_backward(
    operands: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, table, bias = operands
    to_x, to_table = _backward("nd,vd->nv", (x, table), cotangent)
    rounded = cotangent.astype(x.dtype)
    ones = jnp.ones(len(rounded), rounded.dtype)
    # HIGHEST: a sum of float32 numbers must not be one of numbers rounded to tf32 or bfloat16.
    to_bias = jnp.einsum(
        "n,nv->v",
        ones,
        rounded,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return to_x, to_table, to_bias.astype(bias.dtype)


affine_float32.defvjp(_affine_forward, _affine_backward)
