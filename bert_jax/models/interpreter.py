"""Run Pallas kernels in an interpreter, for tests on machines without a TPU or GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_INTERPRETED: ContextVar[bool] = ContextVar("interpreted", default=False)


@contextlib.contextmanager
def interpreted() -> Iterator[None]:
    """Use Pallas's interpreter, on any device, for all kernels traced inside the `with` block.

    The interpreter is slow and meant only for tests.
    """
    token = _INTERPRETED.set(True)
    try:
        yield
    finally:
        _INTERPRETED.reset(token)


def is_interpreted() -> bool:
    """Return whether kernels run in the interpreter."""
    return _INTERPRETED.get()
