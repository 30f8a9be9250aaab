"""Worker processes do not outlive the process that started them."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process


def end_with_parent() -> None:
    """End this worker as soon as its parent is gone, however it died; returns at once."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)
