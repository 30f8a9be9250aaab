"""End worker processes with their parent, and report how they ended on their own."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess

# Ctrl-C, a scheduler's request to stop, and a closed terminal.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Ignore signals sent to the whole process group, which the parent handles."""
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
    """Wait for an ending worker and return how it ended, with `remedy` if memory may have run out.

    The result is a predicate for a message, such as "was killed by SIGTERM".
    """
    process.join()
    code = process.exitcode or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL, which the system sends when memory runs out. {remedy}"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code > 0:
        return f"exited with code {code}; its traceback is printed above"
    return "exited with code 0"
