"""Shard arrays over the devices of a mesh, given the logical axes of their dims."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Layout:
    """How arrays are sharded over the devices of a mesh, given the logical axes of their dims.

    Attributes:
      constrain: returns an array, sharded by its logical axes.
      split: takes the arguments of `on_every_device`. It calls the function on every device with
        this device's parts of the function's arguments, and returns the whole result.
      divides: takes a logical axis, and returns whether it is split over several devices.
    """

    constrain: Callable[[jax.Array, Axes], jax.Array]
    split: Callable[
        [
            Callable[..., Any],
            Sequence[jax.Array | None],
            Sequence[Axes],
            Axes | list[Axes],
            str | None,
        ],
        Any,
    ]
    divides: Callable[[str], bool]


_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextlib.contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
    """Shard arrays according to `layout` inside the `with` block. With None, arrays stay whole."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Return `x`, sharded by its logical axes (one per dim) inside a `use_layout` block."""
    layout = _LAYOUT.get()
    return x if layout is None else layout.constrain(x, axes)


def is_divided(axis: str) -> bool:
    """Return whether a `use_layout` block splits a logical axis over several devices."""
    layout = _LAYOUT.get()
    return layout is not None and layout.divides(axis)


def on_every_device(
    function: Callable[..., Any],
    arguments: Sequence[jax.Array | None],
    axes: Sequence[Axes],
    result_axes: Axes | list[Axes],
    *,
    sum_over: str | None = None,
) -> Any:
    """Call a function that the compiler cannot split over devices, such as a Pallas kernel.

    Inside a `use_layout` block, every device calls it with its own parts of the arguments.

    Args:
      function: the function. Given a part of the arguments, it must return the same part of the
        result.
      arguments: the function's arguments; None is passed unchanged.
      axes: the logical axes of each argument. An axis has the same size in all arguments.
      result_axes: the logical axes of the result, or a list of them for a tuple of results. Each
        result is an array or a tuple of arrays with these axes; the devices' parts are
        concatenated.
      sum_over: a logical axis of the arguments over which the function sums. The devices then add
        up their results. None if the function does not sum over a logical axis.
    """
    layout = _LAYOUT.get()
    if layout is None:
        return function(*arguments)
    return layout.split(function, arguments, axes, result_axes, sum_over)


def gather(parameter: jax.Array, dtype: jnp.dtype, axes: Axes) -> jax.Array:
    """Round a parameter to `dtype`, and gather the dims that are sharded only for storage.

    If XLA decides how to multiply by a sharded kernel, its TPU compiler computes the product in
    parts, one for the features on each device, while it exchanges these features. For BERT-base on
    16 devices, a part has only 48 of 768 features. By the compiler's own estimate, the small
    products take several times as long as gathering the kernel and computing the whole product.

    Args:
      parameter: the parameter to gather.
      dtype: the dtype of the result.
      axes: the parameter's logical axes.
    """
    rounded = parameter.astype(dtype)
    if not is_divided(_STORED):
        return rounded
    # Without the first sharding, XLA would gather the parameter before rounding it.
    return constrain(constrain(rounded, *axes), *_whole(axes))


def scatter(gradient: jax.Array, axes: Axes) -> jax.Array:
    """Return a gradient, sharded like the parameter.

    On TPUs, the devices first sum the whole gradient, for the same reason as in `gather`. On GPUs,
    each device sums only its own part.

    Args:
      gradient: the gradient of a parameter.
      axes: the parameter's logical axes.
    """

    def divided(gradient: jax.Array) -> jax.Array:
        return constrain(gradient, *axes)

    if not is_divided(_STORED):
        return divided(gradient)

    def summed(gradient: jax.Array) -> jax.Array:
        return divided(constrain(gradient, *_whole(axes)))

    return jax.lax.platform_dependent(gradient, tpu=summed, default=divided)


_STORED = "embed"  # the axis that is sharded only for storage


def _whole(axes: Axes) -> Axes:
    return tuple(None if axis == _STORED else axis for axis in axes)
