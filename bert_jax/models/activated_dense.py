"""Apply an activation and a dense layer, and keep only the input for the backward pass."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax

from bert_jax.models.barriers import gpu_barrier, recomputed, tpu_barrier
from bert_jax.models.layers import Dense
from bert_jax.models.layout import gather
from bert_jax.models.options import with_ops
from bert_jax.models.products import (
    AffineOptions,
    affine,
    gradient_of_input,
    gradients_of_parameters,
)

Activation = Callable[..., jax.Array]
_Arguments = tuple[jax.Array, ...]
_Saved = tuple[_Arguments, jax.Array, jax.Array | None]


def activated_dense(layer: Dense, activation: Activation, *arguments: jax.Array) -> jax.Array:
    """Apply a dense layer to the result of `activation`, a function of arrays of the same shape.

    Args:
      layer: the dense layer.
      activation: a differentiable, elementwise function.
      *arguments: the function's arguments, each [batch, length, in_features], in the compute dtype.

    Returns:
      [batch, length, out_features].
    """
    if layer.ops != "fast" or layer.products != "dtype":
        return layer(with_ops(recomputed(activation), layer.ops)(*arguments))
    bias = None if layer.bias is None else layer.bias[...]
    return layer.named(
        _activated_affine(activation, layer.affine_options, arguments, layer.kernel[...], bias)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _activated_affine(
    activation: Activation,
    options: AffineOptions,
    arguments: _Arguments,
    kernel: jax.Array,
    bias: jax.Array | None,
) -> jax.Array:
    """Return the result of `affine` for the activated arguments.

    On TPUs, the matmul that computes the kernel's gradient also recomputes the activation. This
    takes less time than writing the activations in the forward pass and reading them back.
    """
    return affine(activation(*arguments), kernel, bias, options)


def _forward(
    activation: Activation,
    options: AffineOptions,
    arguments: _Arguments,
    kernel: jax.Array,
    bias: jax.Array | None,
) -> tuple[jax.Array, _Saved]:
    return _activated_affine(activation, options, arguments, kernel, bias), (
        arguments,
        kernel,
        bias,
    )


def _backward(
    activation: Activation, options: AffineOptions, saved: _Saved, cotangent: jax.Array
) -> tuple[_Arguments, jax.Array, jax.Array | None]:
    arguments, kernel, bias = saved
    activated = activation(*tpu_barrier(arguments))
    to_kernel, to_bias = gradients_of_parameters(activated, kernel, bias, cotangent, options)
    to_activated = gradient_of_input(gather(kernel, activated.dtype, options.axes), cotangent)
    arguments, to_activated = gpu_barrier((arguments, to_activated))
    _, pull = jax.vjp(activation, *arguments)
    return pull(to_activated), to_kernel, to_bias


_activated_affine.defvjp(_forward, _backward)
