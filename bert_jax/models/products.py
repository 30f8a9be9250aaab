"""Implement matmuls that accumulate in float32 and have fast backward passes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.models.layout import Axes, gather, is_divided, scatter


def product(
    subscripts: str, left: jax.Array, right: jax.Array, dtype: jnp.dtype | None = None
) -> jax.Array:
    """Compute the `jnp.einsum` of two arrays of the same dtype, accumulating in float32.

    The result has the operands' dtype, or `dtype` if given. If `dtype` is wider, accelerators still
    round to the operands' dtype first, which halves the data that devices exchange to sum the
    result. CPUs skip this rounding, which would take two more passes over the result.

    Do not differentiate `product`; the functions that use it define their own gradients.

    In `subscripts`, the result's dims from `left` must come before those from `right`. Otherwise,
    the result has to be transposed. XLA's CPU compiler (jax 0.10 and 0.11) then swaps the operands
    after choosing a matmul kernel, and may fail with "Unsupported element type for DotThunk".
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


class AffineOptions(NamedTuple):
    """How `affine` computes on accelerators.

    Attributes:
      axes: the kernel's logical axes.
      multiply_ones: whether TPUs sum the bias gradient with `multiplied_sum_of_rows`.
    """

    axes: Axes = (None, None)
    multiply_ones: bool = False


_DEFAULTS = AffineOptions()


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def affine(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, options: AffineOptions = _DEFAULTS
) -> jax.Array:
    """Multiply `x` [rows, in] or [batch, length, in] by `kernel` [in, out] and add `bias` [out].

    If `bias` is None, nothing is added.

    Parameters are rounded to the dtype of `x`, which is also the dtype of the result. Each gradient
    has the dtype of its parameter; the bias gradient is summed in float32.
    """
    rows = _rows(x)
    leading = _LEADING[rows.ndim]
    mapped = product(f"{leading}i,io->{leading}o", rows, gather(kernel, x.dtype, options.axes))
    mapped = mapped.reshape(*x.shape[:-1], kernel.shape[1])
    return mapped if bias is None else mapped + bias.astype(x.dtype)


_LEADING = {2: "r", 3: "bl"}


def _rows(x: jax.Array) -> jax.Array:
    """Reshape `x` [..., dim] to the shape that makes the kernel's gradient fastest to compute.

    In float32, XLA's CPU compiler contracts one dim without copying an operand. To contract two
    dims, it first makes a transposed copy of the larger operand. For 32 x 128 tokens with 256
    features and a [256, 1024] kernel, this takes 30 ms instead of 9 ms. In bfloat16, contracting
    two dims is faster: 7 ms instead of 27 ms for 64 x 128 tokens.
    """
    return x if x.dtype == jnp.bfloat16 else x.reshape(-1, x.shape[-1])


_Affine = tuple[jax.Array, jax.Array, jax.Array | None]  # the operands, or their gradients


def _affine_forward(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, options: AffineOptions
) -> tuple[jax.Array, _Affine]:
    return affine(x, kernel, bias, options), (x, kernel, bias)


def _affine_backward(options: AffineOptions, operands: _Affine, cotangent: jax.Array) -> _Affine:
    x, kernel, bias = operands
    to_x = gradient_of_input(gather(kernel, x.dtype, options.axes), cotangent)
    return to_x, *gradients_of_parameters(x, kernel, bias, cotangent, options)


def gradient_of_input(kernel: jax.Array, cotangent: jax.Array) -> jax.Array:
    """Return the gradient of `x` in `affine`, given the gathered `kernel` in the dtype of `x`."""
    outer = _rows(cotangent)
    leading = _LEADING[outer.ndim]
    to_rows = product(f"{leading}o,io->{leading}i", outer, kernel)
    return to_rows.reshape(*cotangent.shape[:-1], len(kernel))


def gradients_of_parameters(
    x: jax.Array,
    kernel: jax.Array,
    bias: jax.Array | None,
    cotangent: jax.Array,
    options: AffineOptions,
) -> tuple[jax.Array, jax.Array | None]:
    """Return the gradients of `kernel` and `bias` in `affine`."""
    rows, outer = _rows(x), _rows(cotangent)
    leading = _LEADING[outer.ndim]
    whole = product(f"{leading}i,{leading}o->io", rows, outer, kernel.dtype)
    to_kernel = scatter(whole, options.axes)
    if bias is None:
        return to_kernel, None
    add = partial(sum_of_rows, dtype=bias.dtype)
    if not options.multiply_ones or cotangent.dtype != jnp.bfloat16:
        return to_kernel, add(cotangent)
    multiply = partial(multiplied_sum_of_rows, dtype=bias.dtype)
    return to_kernel, jax.lax.platform_dependent(cotangent, tpu=multiply, default=add)


def sum_of_rows(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Sum all rows of `x` [..., dim] in float32 and round the sums to `dtype`."""
    return jnp.sum(x, axis=range(x.ndim - 1), dtype=jnp.float32).astype(dtype)


def multiplied_sum_of_rows(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Compute the sums of `sum_of_rows`, for bfloat16 rows, as a product with ones.

    If XLA computes an array itself, it can add up the rows at no cost at the same time. If a custom
    kernel computes the array, summing takes another pass over it in vector units. By the compiler's
    estimate for a v5e, this sum takes 118 us for 16,384 rows of 768 numbers, and the product at
    most 42 us. The product has several rows of ones, since XLA would turn a single row back into a
    sum.
    """
    leading = _LEADING[x.ndim]
    sublanes = 8  # the number of sublanes in a TPU's vector registers
    ones = jnp.ones((*x.shape[:-1], sublanes), x.dtype)
    subscripts = f"{leading}i,{leading}o->io"
    return jnp.einsum(subscripts, ones, x, preferred_element_type=jnp.float32)[0].astype(dtype)


affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_vjp
def attention_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return the dot products of queries and keys as float32 [batch, heads, from, to].

    Args:
      query: [batch, from, heads, head_dim].
      key: [batch, to, heads, head_dim], in the same dtype.

    The cotangent is rounded to the operands' dtype, as in all other matmuls in the model. JAX's own
    derivative would multiply a float32 cotangent by bfloat16 operands, so both matmuls in the
    backward pass would run in float32.
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
def affine_float32(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Multiply `x` [rows, dim] by the transposed `table` [classes, dim] and add `bias`, in float32.

    `bias` has the shape [classes], and the result has the shape [rows, classes]. The backward pass
    rounds the cotangent as in `attention_scores`. The bias gradient is the sum of the rounded
    cotangent over the rows, accumulated in float32.
    """
    return logits(x, table, bias)


def logits(x: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    """Compute the same as `affine_float32`, but without its custom backward pass."""
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
    to_x, to_table, to_bias = logit_gradients(x, table, cotangent, _rounded_table_gradient)
    return to_x, to_table, to_bias.astype(bias.dtype)


TableGradient = Callable[[jax.Array, jax.Array], jax.Array]


def logit_gradients(
    x: jax.Array, table: jax.Array, cotangent: jax.Array, table_gradient: TableGradient
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of the arguments of `affine_float32`.

    Args:
      x: see `affine_float32`.
      table: see `affine_float32`.
      cotangent: float32 [rows, classes].
      table_gradient: a function that computes the gradient of the table from the cotangent (in the
        dtype of `x`) and `x`.

    Returns:
      The gradient of `x` in the dtype of `x`, the gradient of the table as returned by
      `table_gradient`, and the gradient of the bias in float32.
    """
    rounded = cotangent.astype(x.dtype)
    gradients: tuple[jax.Array, jax.Array, jax.Array] = jax.lax.platform_dependent(
        x,
        table,
        rounded,
        cuda=partial(_gradients_with_sum, table_gradient),
        default=partial(_gradients_with_product, table_gradient),
    )
    return gradients


def _rounded_table_gradient(cotangent: jax.Array, x: jax.Array) -> jax.Array:
    return product("nv,nd->vd", cotangent, x)


def _gradients_with_product(
    table_gradient: TableGradient, x: jax.Array, table: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of `x`, `table` and the bias, multiplying by ones to sum the rows.

    On a CPU, summing 640 x 30,522 logits over the rows took longer (48 ms) than either of the two
    matmuls (20 and 27 ms).
    """
    ones = jnp.ones(len(cotangent), cotangent.dtype)
    # With the precision HIGHEST, float32 numbers are not rounded to TF32 or bfloat16 before they
    # are summed.
    to_bias = jnp.einsum(
        "n,nv->v",
        ones,
        cotangent,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    to_x = product("nv,vd->nd", cotangent, table)
    return to_x, table_gradient(cotangent, x), to_bias


_ALIGNMENT = 8  # cuBLAS needs rows whose size is a multiple of 16 bytes (8 numbers)


def _gradients_with_sum(
    table_gradient: TableGradient, x: jax.Array, table: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the same as `_gradients_with_product`, but pad the classes to a multiple of 8.

    Without this padding, XLA's GPU compiler pads the cotangent itself and computes it twice, once
    in a kernel that writes the padded cotangent and once in a kernel that sums it. Here, the sum is
    over the padded cotangent, so one kernel does both. For 9,856 rows of 30,522 logits, this reads
    1.2 GB less. If the classes are sharded, nothing is padded, since the devices would have to
    exchange the padding.
    """
    classes = len(table)
    padding = 0 if is_divided("vocab") else -classes % _ALIGNMENT
    padded = jnp.pad(cotangent, ((0, 0), (0, padding)))
    to_bias = jnp.sum(padded, axis=0, dtype=jnp.float32)[:classes]
    to_x = product("nv,vd->nd", padded, jnp.pad(table, ((0, padding), (0, 0))))
    return to_x, table_gradient(padded, x)[:classes], to_bias


affine_float32.defvjp(_affine_float32_forward, _affine_float32_backward)
