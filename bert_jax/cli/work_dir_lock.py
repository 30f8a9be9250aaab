"""One writer a work directory."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def only_writer(work_dir: Path) -> Iterator[None]:
    """Holds `work_dir` against a second run, whose checkpoints and log would overwrite the first's.

    The directory itself is locked, so nothing is left in it, and the lock ends with the process
    however it dies.

    Raises:
      ValueError: another process holds it.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    directory = os.open(work_dir, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(directory)
        raise ValueError(
            f"{work_dir}: another run is at work in it; wait for it, end it, or use another "
            "work_dir"
        ) from None
    except OSError as error:
        logging.getLogger(__name__).warning(
            "%s cannot be locked (%s): see to it that no second run uses it", work_dir, error
        )
    try:
        yield
    finally:
        os.close(directory)
        with suppress(OSError):  # a run that was refused leaves no empty directory behind
            work_dir.rmdir()
