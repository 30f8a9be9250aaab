"""Apply several dense layers to the same input, and sum the input's gradient once."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.models.layers import Dense
from bert_jax.models.layout import Axes, gather, is_divided, on_every_device
from bert_jax.models.products import (
    AffineOptions,
    affine,
    gradient_of_input,
    gradients_of_parameters,
)

_Biases = tuple[jax.Array | None, ...]
_Kernels = tuple[jax.Array, ...]


def apply_each(layers: Sequence[Dense], x: jax.Array) -> list[jax.Array]:
    """Apply each of several dense layers to `x` [batch, length, in_features].

    If the layers' outputs are sharded, each layer's gradient of `x` is a sum over devices. This
    function first adds up the gradients of all layers on each device, so that the devices exchange
    only one sum. For BERT with `mesh.tensor`, they then exchange two arrays like `x` instead of
    four in the backward pass of an encoder layer.

    Args:
      layers: layers with the same options, logical axes and number of outputs.
      x: the input, in the compute dtype.

    Returns:
      the outputs, each [batch, length, out_features].
    """
    first = layers[0]
    assert all(
        (layer.ops, layer.products, layer.affine_options, layer.out_features)
        == (first.ops, first.products, first.affine_options, first.out_features)
        for layer in layers
    )
    axis = first.affine_options.axes[1]
    # If the outputs are not split over devices, a common sum would only change the order in which
    # the gradients are added.
    if first.ops != "fast" or first.products != "dtype" or not (axis and is_divided(axis)):
        return [layer(x) for layer in layers]
    kernels = tuple(layer.kernel[...] for layer in layers)
    biases = tuple(None if layer.bias is None else layer.bias[...] for layer in layers)
    results = _affine_each(first.affine_options, x, kernels, biases)
    return [layer.named(result) for layer, result in zip(layers, results, strict=True)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _affine_each(
    options: AffineOptions, x: jax.Array, kernels: _Kernels, biases: _Biases
) -> tuple[jax.Array, ...]:
    """Return the result of `affine` for `x` and each pair of kernel and bias."""
    return tuple(affine(x, *each, options) for each in zip(kernels, biases, strict=True))


def _forward(
    options: AffineOptions, x: jax.Array, kernels: _Kernels, biases: _Biases
) -> tuple[tuple[jax.Array, ...], tuple[jax.Array, _Kernels, _Biases]]:
    return _affine_each(options, x, kernels, biases), (x, kernels, biases)


def _backward(
    options: AffineOptions,
    saved: tuple[jax.Array, _Kernels, _Biases],
    cotangents: tuple[jax.Array, ...],
) -> tuple[jax.Array, _Kernels, _Biases]:
    x, kernels, biases = saved
    count = len(kernels)

    def to_input(*arrays: jax.Array) -> jax.Array:
        pairs = zip(arrays[:count], arrays[count:], strict=True)
        return functools.reduce(jnp.add, [gradient_of_input(*pair) for pair in pairs])

    axis = options.axes[1]
    rows: Axes = ("batch", None, axis)
    to_x = on_every_device(
        to_input,
        [*(gather(kernel, x.dtype, options.axes) for kernel in kernels), *cotangents],
        [(None, axis)] * count + [rows] * count,
        ("batch", None, None),
        sum_over=axis,
    )
    each = zip(kernels, biases, cotangents, strict=True)
    gradients = [gradients_of_parameters(x, *arguments, options) for arguments in each]
    to_kernels, to_biases = zip(*gradients, strict=True)
    return to_x, to_kernels, to_biases


_affine_each.defvjp(_forward, _backward)
