"""One writer a work directory."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LOCK_NAME = ".lock"


@contextmanager
def only_writer(work_dir: Path) -> Iterator[None]:
    """Holds `work_dir` against a second run, whose checkpoints and log would overwrite the first's.

    The lock ends with the process, however it dies.

    Raises:
      ValueError: another process holds it.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    with (work_dir / LOCK_NAME).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(
                f"{work_dir}: {file.read().strip() or 'another process'} is training there; wait "
                "for it, end it, or use another work_dir"
            ) from None
        except OSError as error:
            logging.getLogger(__name__).warning(
                "%s cannot be locked (%s): see to it that no second run uses it", work_dir, error
            )
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield
