"""Define LayerNorm and RMSNorm, which share a hand-written backward pass."""

from __future__ import annotations

import functools
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import compute_dtype
from bert_jax.models.options import Ops, with_ops

_Saved = tuple[jax.Array, jax.Array, jax.Array | None, jax.Array, jax.Array]


class LayerNorm(nnx.LayerNorm):
    """Layer normalization that calls `normalize` (Ba et al. 2016)."""

    def __init__(self, dim: int, *, ops: Ops, **options: Any):
        super().__init__(dim, **options)
        self.ops = ops

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """Normalize `x` [..., dim]; the result has the compute dtype."""
        assert mask is None and self.scale is not None
        bias = None if self.bias is None else self.bias[...]
        compute = with_ops(normalize, self.ops)
        return compute(x.astype(self.dtype), self.scale[...], bias, self.epsilon, True)


class RMSNorm(nnx.RMSNorm):
    """Root-mean-square normalization that calls `normalize` (Zhang and Sennrich 2019)."""

    def __init__(self, dim: int, *, ops: Ops, **options: Any):
        super().__init__(dim, **options)
        self.ops = ops

    def __call__(self, x: jax.Array, mask: jax.Array | None = None) -> jax.Array:
        """Normalize `x` [..., dim]; the result has the compute dtype."""
        assert mask is None and self.scale is not None
        compute = with_ops(normalize, self.ops)
        return compute(x.astype(self.dtype), self.scale[...], None, self.epsilon, False)


Norm = LayerNorm | RMSNorm


def norm_layer(dim: int, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs) -> Norm:
    """Return normalization over the last dim, with float32 statistics (see `norm_kind`)."""
    options: dict[str, Any] = {
        "ops": compute.ops,
        "epsilon": config.layer_norm_epsilon,
        "dtype": compute_dtype(compute),
        "scale_metadata": {"logical_axes": ("norm",)},
        "rngs": rngs,
    }
    match config.norm_kind:
        case "layer":
            bias_metadata = {"logical_axes": ("norm",)}
            return LayerNorm(dim, use_bias=config.norm_bias, bias_metadata=bias_metadata, **options)
        case "rms":
            return RMSNorm(dim, **options)
        case _:
            assert_never(config.norm_kind)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float, centered: bool
) -> jax.Array:
    """Divide each vector by its root mean square, multiply it by `scale`, and add `bias`.

    Everything is computed in float32, from float32 parameters, and only the result is rounded. The
    backward pass keeps `x` and two numbers for each vector, and sums the gradients of `scale` and
    `bias` in float32.

    Args:
      x: [..., dim].
      scale: [dim].
      bias: [dim]; None adds nothing.
      epsilon: the constant added to the mean square.
      centered: whether the mean of each vector is subtracted first.

    Returns:
      An array like `x`.
    """
    mean, inverse = _statistics(x, epsilon, centered)
    return _apply(x, scale, bias, mean, inverse)


def _statistics(x: jax.Array, epsilon: float, centered: bool) -> tuple[jax.Array, jax.Array]:
    """Return the mean and 1 / sqrt(mean square + epsilon) of each vector, float32 [..., 1]."""
    wide = x.astype(jnp.float32)
    # Compute E[(x - E[x])^2]: E[x^2] - E[x]^2 loses precision if |mean| >> standard deviation.
    mean = jnp.mean(wide, axis=-1, keepdims=True) if centered else jnp.zeros((), jnp.float32)
    square = jnp.mean(jnp.square(wide - mean), axis=-1, keepdims=True)
    return mean, jax.lax.rsqrt(square + epsilon)


def _apply(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, mean: jax.Array, inverse: jax.Array
) -> jax.Array:
    result = (x.astype(jnp.float32) - mean) * (inverse * scale)
    return (result if bias is None else result + bias).astype(x.dtype)


def _forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float, centered: bool
) -> tuple[jax.Array, _Saved]:
    mean, inverse = _statistics(x, epsilon, centered)
    return _apply(x, scale, bias, mean, inverse), (x, scale, bias, mean, inverse)


def _backward(
    epsilon: float, centered: bool, saved: _Saved, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    x, scale, bias, mean, inverse = saved
    wide = cotangent.astype(jnp.float32)
    unit = (x.astype(jnp.float32) - mean) * inverse
    to_unit = wide * scale
    along = jnp.mean(to_unit * unit, axis=-1, keepdims=True)
    to_x = to_unit - unit * along
    if centered:
        to_x = to_x - jnp.mean(to_unit, axis=-1, keepdims=True)
    rows = range(x.ndim - 1)
    to_scale = jnp.sum(wide * unit, axis=rows).astype(scale.dtype)
    to_bias = None if bias is None else jnp.sum(wide, axis=rows).astype(bias.dtype)
    return (to_x * inverse).astype(x.dtype), to_scale, to_bias


normalize.defvjp(_forward, _backward)
