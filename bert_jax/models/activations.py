"""The feed-forward activations, which keep nothing but their input for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.config import Activation


def activation_function(name: Activation) -> Callable[[jax.Array], jax.Array]:
    """GELU exactly (erf) or by its tanh approximation (Hendrycks and Gimpel 2016, section 2)."""
    return gelu_tanh if name == "gelu_tanh" else gelu


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x times the normal distribution function of x; computed in float32, in the dtype of `x`.

    In bfloat16, 1 + erf(x) would lose the left tail: erf(-2) has two digits there. In float32 the
    error stays below 1e-6, as in PyTorch: gelu(-5) is -1.34e-6 where -1.43e-6 is exact.
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
    """The tanh approximation of `gelu`, likewise computed in float32."""
    return _gelu_tanh_float32(x.astype(jnp.float32)).astype(x.dtype)


def _gelu_tanh_float32(x: jax.Array) -> jax.Array:
    return jax.nn.gelu(x, approximate=True)


def _gelu_tanh_forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return gelu_tanh(x), x


def _gelu_tanh_backward(x: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
    _, pull = jax.vjp(_gelu_tanh_float32, x.astype(jnp.float32))
    return (pull(cotangent.astype(jnp.float32))[0].astype(x.dtype),)


gelu_tanh.defvjp(_gelu_tanh_forward, _gelu_tanh_backward)
