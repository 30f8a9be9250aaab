"""Where a trainer may pin the layout of activations, by logical axis, while the model is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import jax

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
