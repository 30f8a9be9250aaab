"""Implement matmuls, activations and dropout with custom backward passes.

Matmuls accumulate in float32, and their backward passes are arranged for speed. For the backward
pass, an activation stores only its input, and dropout stores only its key because its mask is a
hash of the key and the position. `with_ops` returns the same operations without custom backward
passes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar, assert_never

import jax
import jax.numpy as jnp

from bert_jax.models.options import Activation, Ops

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_ops(function: Callable[_P, _R], ops: Ops) -> Callable[_P, _R]:
    """Return the `jax.custom_vjp` function itself, or the function it wraps if `ops` is "plain"."""
    match ops:
        case "fast":
            return function
        case "plain":
            plain: Callable[_P, _R] = function.__wrapped__  # type: ignore[attr-defined]
            return plain
        case _:
            assert_never(ops)


def product(
    subscripts: str, left: jax.Array, right: jax.Array, dtype: jnp.dtype | None = None
) -> jax.Array:
    """Compute the `jnp.einsum` of two arrays of the same dtype, accumulating in float32.

    The result has the operands' dtype, or `dtype` if given. If `dtype` is wider, accelerators still
    round to the operands' dtype first, which halves the data that devices exchange to sum the
    result. CPUs do not, since rounding would take two more passes over the result.

    Do not differentiate `product`; the functions that use it define their own gradients.

    In `subscripts`, the result's dims from `left` must come before those from `right`. Otherwise
    the result has to be transposed, so XLA's CPU compiler (jax 0.10 and 0.11) swaps the operands
    after choosing a matmul kernel and may fail with "Unsupported element type for DotThunk".
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
def affine(x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Multiply `x` [rows, in] or [batch, length, in] by `kernel` [in, out] and add `bias` [out].

    If `bias` is None, nothing is added.

    Parameters are rounded to the dtype of `x`, which is also the dtype of the result. Each gradient
    has the dtype of its parameter; the bias gradient is summed in float32.
    """
    rows = _rows(x)
    leading = _LEADING[rows.ndim]
    mapped = product(f"{leading}i,io->{leading}o", rows, kernel.astype(x.dtype))
    mapped = mapped.reshape(*x.shape[:-1], kernel.shape[1])
    return mapped if bias is None else mapped + bias.astype(x.dtype)


_LEADING = {2: "r", 3: "bl"}


def _rows(x: jax.Array) -> jax.Array:
    """Reshape `x` [..., dim] to the shape that makes the kernel's gradient fastest to compute.

    In float32, XLA's CPU compiler contracts one dim without copying an operand, but to contract two
    dims, it first makes a transposed copy of the larger operand. For 32 x 128 tokens with 256
    features and a [256, 1024] kernel, this takes 30 ms instead of 9 ms. In bfloat16, only
    contracting two dims is fast: 7 ms instead of 27 ms for 64 x 128 tokens.
    """
    return x if x.dtype == jnp.bfloat16 else x.reshape(-1, x.shape[-1])


_Affine = tuple[jax.Array, jax.Array, jax.Array | None]  # the operands, or their gradients


def _affine_forward(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, _Affine]:
    return affine(x, kernel, bias), (x, kernel, bias)


def _affine_backward(operands: _Affine, cotangent: jax.Array) -> _Affine:
    x, kernel, bias = operands
    outer = _rows(cotangent)
    leading = _LEADING[outer.ndim]
    to_x = product(f"{leading}o,io->{leading}i", outer, kernel.astype(x.dtype)).reshape(x.shape)
    to_kernel = product(f"{leading}i,{leading}o->io", _rows(x), outer, kernel.dtype)
    if bias is None:
        return to_x, to_kernel, None
    to_bias = jnp.sum(cotangent, axis=range(cotangent.ndim - 1), dtype=jnp.float32)
    return to_x, to_kernel, to_bias.astype(bias.dtype)


affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_vjp
def attention_scores(query: jax.Array, key: jax.Array) -> jax.Array:
    """Return the dot products of queries and keys as float32 [batch, heads, from, to].

    Args:
      query: [batch, length, heads, head_dim].
      key: same shape and dtype as `query`.

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
def weighted_values(weights: jax.Array, value: jax.Array) -> jax.Array:
    """Return weighted sums of the vectors in `value`, shaped [batch, from, heads, head_dim].

    Args:
      weights: [batch, heads, from, to].
      value: [batch, to, heads, head_dim], with the same dtype.
    """
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
    """Multiply `x` [rows, dim] by the transposed `table` [classes, dim] and add `bias`, in float32.

    `bias` has the shape [classes], and the result has the shape [rows, classes]. The backward pass
    rounds the cotangent as in `attention_scores`. It computes the bias gradient by multiplying a
    vector of ones by the rounded cotangent, because summing 640 x 30,522 logits over the rows took
    longer on a CPU (48 ms) than either of the other two matmuls (20 and 27 ms).
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
    # HIGHEST keeps float32 numbers from being rounded to TF32 or bfloat16 before they are summed.
    to_bias = jnp.einsum(
        "n,nv->v",
        ones,
        rounded,
        precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )
    return to_x, to_table, to_bias.astype(bias.dtype)


affine_float32.defvjp(_affine_float32_forward, _affine_float32_backward)


def activation_function(name: Activation, ops: Ops = "fast") -> Callable[[jax.Array], jax.Array]:
    """Return an activation function.

    "gelu" is the exact (erf) GELU, and "gelu_tanh" and "quick_gelu" approximate it (Hendrycks and
    Gimpel 2016, section 2).
    """
    match name:
        case "gelu":
            return with_ops(gelu, ops)
        case "gelu_tanh":
            return with_ops(gelu_tanh, ops)
        case "relu":
            return jax.nn.relu
        case "silu":
            return jax.nn.silu
        case "tanh":
            return jnp.tanh
        case "quick_gelu":
            return quick_gelu
        case _:
            assert_never(name)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """Return x times the standard normal CDF at x, computed in float32.

    The result has the dtype of `x`. In bfloat16, 1 + erf(x) would lose the left tail, since erf(-2)
    would have only two digits. In float32, the error is below 1e-6, as in PyTorch: gelu(-5) comes
    out as -1.34e-6, while the exact value is -1.43e-6.
    """
    wide = x.astype(jnp.float32)
    return (wide * _normal_cdf(wide)).astype(x.dtype)


def _normal_cdf(x: jax.Array) -> jax.Array:
    return 0.5 * (1.0 + jax.lax.erf(x * math.sqrt(0.5)))


def _gelu_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu(x), x


def _gelu_backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * wide * wide) / math.sqrt(2.0 * math.pi)
    slope = _normal_cdf(wide) + wide * density
    return ((cotangent.astype(jnp.float32) * slope).astype(x.dtype),)


gelu.defvjp(_gelu_forward, _gelu_backward)


@jax.custom_vjp
def gelu_tanh(x: jax.Array) -> jax.Array:
    """Return the tanh approximation of `gelu`, also computed in float32."""
    return _gelu_tanh_float32(x.astype(jnp.float32)).astype(x.dtype)


def _gelu_tanh_float32(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_tanh_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu_tanh(x), x


def _gelu_tanh_backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    _, pull = jax.vjp(_gelu_tanh_float32, x.astype(jnp.float32))
    return (pull(cotangent.astype(jnp.float32))[0].astype(x.dtype),)


gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)


def quick_gelu(x: jax.Array) -> jax.Array:
    """Return x times the sigmoid of 1.702 x."""
    return x * jax.nn.sigmoid(1.702 * x)


# Multipliers from Wellons' "lowbias32" integer hash (2018), the least biased pair that he found.
_MULTIPLIER_1 = 0x7FEB352D
_MULTIPLIER_2 = 0x846CA68B
_GOLDEN = 0x9E3779B9


def _mix(x: jax.Array) -> jax.Array:
    """Hash uint32 words bijectively and with full avalanche."""
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
    element's *global* index, so the mask is the same under any sharding. The index over the last
    two dims has 32 bits. Each index over the leading dims is hashed into 64 bits of state, which
    are mixed in at two points so that the counters do not overlap.

    Args:
      key: a typed JAX key (`jax.random.key`).
      rate: the probability that an element is False, in [0, 1).
      shape: the shape of the mask, of any rank, with fewer than 2^32 elements in the last two dims
        and fewer than 2^32 in the leading dims.
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


def dropout(x: jax.Array, rate: float, key: jax.Array | None, ops: Ops = "fast") -> jax.Array:
    """Zero elements with probability `rate` and scale the rest by 1 / (1 - rate).

    If `key` is None (in evaluation) or `rate` is 0, the result is `x`. With "fast" `ops`, the
    backward pass recomputes the mask; with "plain" ops, JAX stores it.

    Source: Srivastava et al. 2014.
    """
    if key is None or rate == 0.0:
        return x
    return with_ops(_dropout, ops)(x, rate, key)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _dropout(x: jax.Array, rate: float, key: jax.Array) -> jax.Array:
    scale = jnp.asarray(1.0 / (1.0 - rate), x.dtype)
    return jnp.where(keep_mask(key, rate, x.shape), x * scale, jnp.zeros((), x.dtype))


def _dropout_forward(x: jax.Array, rate: float, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _dropout(x, rate, key), key


def _dropout_backward(rate: float, key: jax.Array, grad: jax.Array) -> tuple[jax.Array, None]:
    return _dropout(grad, rate, key), None


_dropout.defvjp(_dropout_forward, _dropout_backward)
