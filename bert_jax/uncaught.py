"""Handle exceptions that Python would merely print: lost interrupts and closed event loops."""

from __future__ import annotations

import _thread
import sys
import threading
from types import TracebackType
from typing import Any

_SECONDS_TO_INTERRUPT = 0.05


def raise_lost_interrupts() -> None:
    """Re-raise any KeyboardInterrupt that Python would merely print.

    If Ctrl-C arrives during a garbage-collector callback, such as JAX's, Python prints the
    exception instead of raising it.
    """
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if unraisable.exc_type is KeyboardInterrupt:
            # Raise the interrupt a little later, because Python only prints exceptions raised in
            # this hook.
            interrupt = threading.Timer(_SECONDS_TO_INTERRUPT, _thread.interrupt_main)
            interrupt.daemon = True
            interrupt.start()
        else:
            previous(unraisable)

    sys.unraisablehook = hook


def ignore_closed_loops() -> None:
    """Suppress the error from a thread that reports to an event loop that is already closed.

    TensorStore's threads cause this error if another part of the same save has already failed; on a
    full disk, all parts fail. Depending on where the error occurs, Python treats the error as
    uncaught or as unraisable. The first error is still raised and reported.
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
