"""Where a trainer may pin the layout of activations, by logical axis, while the model is traced."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import jax

Axes = tuple[str | None, ...]
Layout = Callable[[jax.Array, tuple[str | None, ...]], jax.Array]
_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextlib.contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
    """Applies `layout` to every `constrain` inside the block; None leaves arrays as they are."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x` laid out by its logical axes (one a dim), if a layout is in force."""
    layout = _LAYOUT.get()
    return x if layout is None else layout(x, axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(parameter: jax.Array, axes: Axes, own_axes: Axes) -> jax.Array:
    """A parameter laid out by `own_axes`, laid out by `axes` for its use.

    Its gradient returns to `own_axes`. `constrain` alone would lay out the gradient by `axes` as
    well: every device would sum all of what it keeps only a part of.
    """
    return constrain(parameter, *axes)


def _gather_forward(parameter: jax.Array, axes: Axes, own_axes: Axes) -> tuple[jax.Array, None]:
    return gather(parameter, axes, own_axes), None


def _gather_backward(axes: Axes, own_axes: Axes, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (constrain(gradient, *own_axes),)


gather.defvjp(_gather_forward, _gather_backward)
