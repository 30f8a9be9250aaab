"""Implement activation functions with backward passes that store only the input."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import assert_never

import jax
import jax.numpy as jnp

from bert_jax.models.barriers import gpu_barrier
from bert_jax.models.options import Activation, Ops, with_ops


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
    would have only two significant digits. In float32, the error is below 1e-6, as in PyTorch: the
    result for gelu(-5) is -1.34e-6, while the exact value is -1.43e-6.
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
    to_x = pull(cotangent.astype(jnp.float32))[0].astype(x.dtype)
    # Without the barrier, XLA's GPU compiler would write this gradient to memory in float32, and
    # then read it again to round and sum it.
    return (gpu_barrier(to_x),)


gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)


def quick_gelu(x: jax.Array) -> jax.Array:
    """Return x times the sigmoid of 1.702 x."""
    return x * jax.nn.sigmoid(1.702 * x)
