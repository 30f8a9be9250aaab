"""One writer a work directory."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bert_jax.local_paths import make_directory

LOCK_NAME = ".lock"


@contextmanager
def only_writer(work_dir: Path) -> Iterator[None]:
    """Holds `work_dir` against a second run, whose checkpoints and log would overwrite the first's.

    A file in it is locked that is open for writing: NFS tells its server of such a lock, and keeps
    one on a directory to this machine. The file stays; the lock ends with the process however it
    dies.

    Raises:
      ValueError: another process holds it.
    """
    lock = _locked(work_dir)
    try:
        yield
    finally:
        with suppress(OSError):  # a run that was refused leaves no empty directory behind
            if os.listdir(work_dir) == [LOCK_NAME]:
                os.unlink(work_dir / LOCK_NAME)
                work_dir.rmdir()
        os.close(lock)


def _locked(work_dir: Path) -> int:
    """The locked file."""
    file = work_dir / LOCK_NAME
    while True:
        make_directory(work_dir)
        lock = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise ValueError(
                f"{work_dir}: another run is at work in it; wait for it, end it, or use another "
                "work_dir"
            ) from None
        except OSError as error:
            logging.getLogger(__name__).warning(
                "%s cannot be locked (%s): see to it that no second run uses it", work_dir, error
            )
            return lock
        # A run that was refused may have removed the file since it was opened here.
        if file.exists() and os.path.samestat(os.fstat(lock), file.stat()):
            return lock
        os.close(lock)
