"""The model's matrix products: laid out for their backward passes, accumulated in float32.

XLA's CPU compiler multiplies bfloat16 matrices with the processor's own instructions (AMX) where
a float32 result is asked for, and converts both operands to float32 first where the result is to
be bfloat16: 2.5 ms against 19 for [8192, 256] x [256, 1024]. On a CPU every product whose result is
rounded is therefore asked for in float32 first; on an accelerator that would be one more pass over
the result. (Times in this file: 2 cores of a Xeon, 2026-11.)
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def product(
    subscripts: str, left: jax.Array, right: jax.Array, dtype: jnp.dtype | None = None
) -> jax.Array:
    """`jnp.einsum` of two arrays of one dtype, accumulated in float32, in `dtype` or theirs.

    Where `dtype` is the wider one, an accelerator rounds to theirs in between, so that what is
    summed over devices is half as long; on a CPU that would be two more passes over the result.

    Not to be differentiated: the functions built on it say how, each for its own operands.

    The result's dims are to stand as the operands' do, [left's, right's]: where a transposition
    follows, XLA's CPU compiler (jax 0.10 and 0.11) exchanges the operands after it has chosen how
    to multiply them, and may stop with "Unsupported element type for DotThunk".
    """
    assert left.dtype == right.dtype, (left.dtype, right.dtype)
    if left.dtype != jnp.bfloat16:
        return jnp.einsum(subscripts, left, right)
    result = left.dtype if dtype is None else dtype

    def widened(left: jax.Array, right: jax.Array) -> jax.Array:
        wide = jnp.einsum(subscripts, left, right, preferred_element_type=jnp.float32)
        return wide.astype(result)

    def direct(left: jax.Array, right: jax.Array) -> jax.Array:
        return jnp.einsum(subscripts, left, right).astype(result)

    return jax.lax.platform_dependent(left, right, cpu=widened, default=direct)


@jax.custom_vjp
def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array) -> jax.Array:
    """`x` [rows, in] or [batch, length, in] times `kernel` [in, out] plus `bias` [out].

    Parameters are rounded to the dtype of `x`, which is that of the result; their gradients come in
    their own dtype, that of the bias summed in float32.
    """
    rows = _rows(x)
    leading = _LEADING[rows.ndim]
    mapped = product(f"{leading}i,io->{leading}o", rows, kernel.astype(x.dtype))
    return mapped.reshape(*x.shape[:-1], kernel.shape[1]) + bias.astype(x.dtype)


_LEADING = {2: "r", 3: "bl"}


def _rows(x: jax.Array) -> jax.Array:
    """`x` [..., dim] with the leading dims that the kernel's gradient contracts fastest.

    In float32 XLA's CPU compiler reads both operands as they lie where one dim is contracted, and
    first transposes a copy of the larger where two are: 9 ms against 30 for 32 x 128 tokens of 256
    features on a [256, 1024] kernel. In bfloat16 only the latter is multiplied without a detour:
    7 ms against 27 for 64 x 128 tokens.
    """
    return x if x.dtype == jnp.bfloat16 else x.reshape(-1, x.shape[-1])


def _affine_forward(
    x: jax.Array, kernel: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    return affine(x, kernel, bias), (x, kernel, bias)


def _affine_backward(
    operands: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, kernel, bias = operands
    outer = _rows(cotangent)
    leading = _LEADING[outer.ndim]
    to_x = product(f"{leading}o,io->{leading}i", outer, kernel.astype(x.dtype)).reshape(x.shape)
    to_kernel = product(f"{leading}i,{leading}o->io", _rows(x), outer, kernel.dtype)
    to_bias = jnp.sum(cotangent, axis=range(cotangent.ndim - 1), dtype=jnp.float32)
    return to_x, to_kernel, to_bias.astype(bias.dtype)


affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_vjp
def attention_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Products of every query with every key of its head, in float32: [batch, heads, from, to].

    Of [batch, length, heads, head_dim] arrays of one dtype.

    Differentiated as it stands, the float32 cotangent would meet bfloat16 operands, and both
    products of the backward pass would run in float32. Here the cotangent is rounded to the
    operands' dtype first, as it is in every other product of the model.
    """
    return jnp.einsum("bqhd,bkhd->bhqk", query, key, preferred_element_type=jnp.float32)


def _scores_forward(
    query: jax.Array, key: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return attention_scores(query, key), (query, key)


def _scores_backward(
    operands: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    query, key = operands
    cotangent = cotangent.astype(query.dtype)
    to_query = product("bhqk,bkhd->bqhd", cotangent, key)
    return to_query, product("bhqk,bqhd->bkhd", cotangent, query)


attention_scores.defvjp(_scores_forward, _scores_backward)


@jax.custom_vjp
def weighted_values(weights: jax.Array, value: jax.Array) -> jax.Array:
    """The sums of `value` [batch, to, heads, head_dim] that [batch, heads, from, to] weigh."""
    return product("bhqk,bkhd->bqhd", weights, value)


def _values_forward(
    weights: jax.Array, value: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return weighted_values(weights, value), (weights, value)


def _values_backward(
    operands: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    weights, value = operands
    to_weights = product("bqhd,bkhd->bhqk", cotangent, value)
    return to_weights, product("bhqk,bqhd->bkhd", weights, cotangent)


weighted_values.defvjp(_values_forward, _values_backward)


@jax.custom_vjp
def affine_float32(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """`x` [rows, dim] on the rows of `table` [classes, dim] plus `bias` [classes], in float32.

    Differentiated like `attention_scores`. The bias gradient is a product with ones, of the same
    rounded cotangent that the other two products read: as a sum over the rows of 640 x 30,522
    logits it took XLA's CPU code longer (48 ms) than either of them (20 and 27).
    """
    return jnp.einsum("nd,vd->nv", x, table, preferred_element_type=jnp.float32) + bias


def _affine_float32_forward(
    x: jax.Array, table: jax.Array, bias: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    assert x.dtype == table.dtype, (x.dtype, table.dtype)
    return affine_float32(x, table, bias), (x, table, bias)


def _affine_float32_backward(
    operands: tuple[jax.Array, jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    x, table, bias = operands
    rounded = cotangent.astype(x.dtype)
    to_x = product("nv,vd->nd", rounded, table)
    to_table = product("nv,nd->vd", rounded, x)
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


affine_float32.defvjp(_affine_float32_forward, _affine_float32_backward)
