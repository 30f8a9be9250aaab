"""How worker processes end: with the process that started them, or on their own."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess

# Ctrl-C, a scheduler's request to stop, and the loss of the terminal.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Leave the signals that may be sent to the whole process group to the parent process."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this worker as soon as its parent is gone, however it died; returns at once."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


def cause_of_death(process: BaseProcess, remedy: str) -> str:
    """Return how a worker that is ending came to its end, and `remedy` if memory ran out.

    Waits for the process: a predicate such as "was killed by SIGTERM", for a message.
    """
    process.join()
    code = process.exitcode or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL; the system does that when memory runs out: {remedy}"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code > 0:
        return f"ended with code {code}; its traceback is printed above"
    return "ended with code 0"
