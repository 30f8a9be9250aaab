"""Multiply matrices of 8-bit floating-point numbers (FP8), with one scale for each tensor.

The formats are from Micikevicius et al. 2022, "FP8 Formats for Deep Learning": E4M3 (up to 448,
with 3 bits of mantissa) for activations and kernels, and E5M2 (up to 57,344, with 2 bits of
mantissa) for gradients. Their range is small, so every tensor is scaled before it is rounded.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.products import product, sum_of_rows

# On Hopper, tensor cores sum FP8 products with less precision than float32. With HIGHEST, cuBLASLt
# adds partial sums in float32. Like Transformer Engine, this module uses HIGHEST only for
# gradients.
_FLOAT32_SUMS = jax.lax.Precision.HIGHEST
_MANTISSA_BITS, _BIAS = 23, 127  # of float32


class Scaled(NamedTuple):
    """A tensor of FP8 numbers and its scale.

    Attributes:
      values: the tensor in FP8.
      scale: a float32 power of two, by which to multiply the values; NaN if the original tensor has
        an element that is infinite or not a number.
    """

    values: jax.Array
    scale: jax.Array


def quantize(x: jax.Array, largest: jax.Array, dtype: jnp.dtype) -> Scaled:
    """Round a tensor to FP8 after multiplying it by the largest power of two that fits.

    Because the scale is a power of two, scaling is exact, and only the conversion rounds.

    Args:
      x: the tensor, in float32 or bfloat16.
      largest: the largest magnitude in the tensor, a scalar.
      dtype: the FP8 dtype to round to.
    """
    # Positive floating-point numbers are ordered like the integers with the same bits. The
    # difference of two such integers, without the mantissa's bits, is therefore the exponent of the
    # largest power of two by which the smaller number can be multiplied without exceeding the
    # larger one.
    limit = np.float32(jnp.finfo(dtype).max).view(np.int32)
    largest = largest.astype(jnp.float32)
    difference = limit - jax.lax.bitcast_convert_type(largest, jnp.int32)
    # Both the factor and its inverse, the scale, must be normal numbers.
    exponent = jnp.clip(difference >> _MANTISSA_BITS, 1 - _BIAS, _BIAS - 1)
    scale = jnp.where(jnp.isfinite(largest), _power_of_two(-exponent), jnp.nan)
    return Scaled((x * _power_of_two(exponent).astype(x.dtype)).astype(dtype), scale)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    bits = (exponent + _BIAS) << _MANTISSA_BITS
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def dequantize(scaled: Scaled, dtype: jnp.dtype) -> jax.Array:
    """Return the numbers of a scaled tensor in bfloat16 or float32, which can represent them."""
    return scaled.values.astype(dtype) * scaled.scale.astype(dtype)


def scaled_product(
    subscripts: str,
    left: Scaled,
    right: Scaled,
    dtype: jnp.dtype,
    *,
    result: jnp.dtype | None = None,
    precision: jax.lax.Precision | None = None,
) -> jax.Array:
    """Compute the `jnp.einsum` of two scaled tensors; see `product` for `subscripts`.

    NVIDIA GPUs multiply the FP8 numbers, and cuBLAS applies the scales to the sums. All other
    devices multiply the same numbers in `dtype`, after a barrier. Without the barrier, XLA may
    leave out a conversion to FP8 and back.

    Args:
      subscripts: the dims, as for `jnp.einsum`.
      left: the first tensor.
      right: the second tensor.
      dtype: the dtype in which the sums are returned and scaled.
      result: the dtype to convert the result to; None for `dtype`.
      precision: the precision of sums on NVIDIA GPUs.
    """

    def in_fp8(left: Scaled, right: Scaled) -> jax.Array:
        unscaled = jnp.einsum(
            subscripts,
            left.values,
            right.values,
            precision=precision,
            preferred_element_type=dtype,
        )
        scaled = unscaled * (left.scale * right.scale).astype(dtype)
        return scaled if result is None else scaled.astype(result)

    def emulated(left: Scaled, right: Scaled) -> jax.Array:
        left, right = jax.lax.optimization_barrier((left, right))
        return product(subscripts, dequantize(left, dtype), dequantize(right, dtype), result)

    return jax.lax.platform_dependent(left, right, cuda=in_fp8, default=emulated)


@jax.custom_vjp
def affine_float8(x: jax.Array, kernel: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Multiply `x` [batch, length, in] by `kernel` [in, out] in FP8 and add `bias` [out].

    If `bias` is None, nothing is added. The result has the dtype of `x`.

    `x` and the kernel are rounded to E4M3. In the backward pass, the gradient of the result is
    rounded to E5M2 before it is multiplied by the rounded kernel and by the rounded `x`. The bias
    gradient is the float32 sum of the unrounded gradient. The scale of each tensor depends only on
    its largest element in the same step, so no state is kept between steps. Between the passes, a
    layer keeps `x` in FP8.

    The sums are rounded to the dtype of `x`; see `scaled_product`.
    """
    return _affine_forward(x, kernel, bias)[0]


_Residuals = tuple[Scaled, Scaled, jax.Array, jax.Array | None]


def _affine_forward(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None
) -> tuple[jax.Array, _Residuals]:
    rounded_x = quantize(x, jnp.max(jnp.abs(x)), jnp.float8_e4m3fn)
    rounded_kernel = quantize(kernel, jnp.max(jnp.abs(kernel)), jnp.float8_e4m3fn)
    mapped = scaled_product("bli,io->blo", rounded_x, rounded_kernel, x.dtype)
    mapped = mapped if bias is None else mapped + bias.astype(x.dtype)
    dtype_of_kernel = jnp.empty(0, kernel.dtype)
    return mapped, (rounded_x, rounded_kernel, dtype_of_kernel, bias)


def _affine_backward(
    residuals: _Residuals, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    rounded_x, rounded_kernel, dtype_of_kernel, bias = residuals
    dtype = cotangent.dtype
    # Without the barriers, XLA's GPU compiler may compute the cotangent several times or store it
    # in float32. It also reads the cotangent twice: for its maximum and for its sum over the rows.
    # The barriers reduce the memory traffic of elementwise kernels in the feed-forward block of
    # BERT-base by 15% (H200).
    cotangent = jax.lax.optimization_barrier(cotangent)
    largest = jax.lax.optimization_barrier(
        jnp.max(jnp.abs(cotangent).astype(jnp.float32), axis=range(cotangent.ndim - 1))
    )
    outer = quantize(cotangent, jnp.max(largest), jnp.float8_e5m2)
    to_x = scaled_product("blo,io->bli", outer, rounded_kernel, dtype, precision=_FLOAT32_SUMS)
    to_kernel = scaled_product(
        "bli,blo->io",
        rounded_x,
        outer,
        dtype,
        result=dtype_of_kernel.dtype,
        precision=_FLOAT32_SUMS,
    )
    return to_x, to_kernel, None if bias is None else sum_of_rows(cotangent, bias.dtype)


affine_float8.defvjp(_affine_forward, _affine_backward)
