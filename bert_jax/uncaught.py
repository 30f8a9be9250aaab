"""Hooks for exceptions that Python would only print: lost interrupts and closed event loops."""

from __future__ import annotations

import _thread
import sys
import threading
from types import TracebackType
from typing import Any

_SECONDS_TO_INTERRUPT = 0.05


def raise_lost_interrupts() -> None:
    """Re-raise KeyboardInterrupts that Python would only print.

    Ctrl-C may arrive during a callback of the garbage collector, such as JAX's.
    """
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # Raise it later: Python would only print an exception raised in this hook as well.
            interrupt = threading.Timer(_SECONDS_TO_INTERRUPT, _thread.interrupt_main)
            interrupt.daemon = True
            interrupt.start()
        else:
            previous(unraisable)

    sys.unraisablehook = hook


def ignore_closed_loops() -> None:
    """Print nothing when a thread reports to an event loop that is closed.

    TensorStore's threads do so when another part of the same save has already failed, and a full
    disk makes all parts fail. Depending on where they fail, Python treats the error as uncaught or
    as unraisable. The first error is raised and reported.
    """
    uncaught, unraisable = sys.excepthook, sys.unraisablehook

    def on_uncaught(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if not _is_closed_loop(error):
            uncaught(kind, error, trace)

    def on_unraisable(event: Any) -> None:
        if not _is_closed_loop(event.exc_value):
            unraisable(event)

    sys.excepthook, sys.unraisablehook = on_uncaught, on_unraisable


def _is_closed_loop(error: BaseException | None) -> bool:
    return type(error) is RuntimeError and str(error) == "Event loop is closed"
