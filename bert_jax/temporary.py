"""Make temporary files and directories next to their targets; remove those of killed processes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_MAX_HOST_LENGTH = 32  # a file system allows 255 bytes for the whole name


@contextmanager
def temporary_beside(path: Path, *, directory: bool = False) -> Iterator[Path]:
    """Make an empty file or directory next to `path`, to be filled and then renamed to `path`.

    It is removed at the end if it has not been renamed. Until then it is locked, so that unlocked
    leftovers of killed processes on this machine can be recognized; those for the same path are
    removed first. The name includes the host name, since locks on a shared file system may be
    visible only to one machine. Unlike a process id, a lock cannot be reused by another process.

    Raises:
        OSError: the file or directory cannot be made.
    """
    _remove_leftovers(path)
    # Not the process id, which a container may reuse while a leftover cannot be removed.
    temporary = path.with_name(f"{_prefix(path)}{time.time_ns()}.tmp")
    descriptor = _locked(temporary, directory)
    try:
        yield temporary
    finally:
        if _is_open_as(descriptor, temporary):
            _remove(temporary, directory)
        os.close(descriptor)


def _prefix(path: Path) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:_MAX_HOST_LENGTH]
    return f"{path.name}.{host}."


def _locked(temporary: Path, directory: bool) -> int:
    """Make and lock `temporary`; return the descriptor that holds the lock."""
    while True:
        if directory:
            temporary.mkdir()
            descriptor = os.open(temporary, os.O_RDONLY)
        else:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # On a file system without locks, leftovers are not removed either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_open_as(descriptor, temporary):
            return descriptor
        os.close(descriptor)  # another process removed it as a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    prefix = _prefix(path)
    with suppress(OSError):  # for example, the directory does not exist or cannot be listed
        for name in os.listdir(path.parent):
            if name.startswith(prefix) and re.fullmatch(r"\d+\.tmp", name.removeprefix(prefix)):
                _remove_unlocked(path.with_name(name))


def _remove_unlocked(leftover: Path) -> None:
    directory = leftover.is_dir()
    with suppress(OSError):  # its process is alive, or it belongs to another user
        # NFS grants an exclusive lock on a file only if it is open for writing.
        descriptor = os.open(leftover, (os.O_RDONLY if directory else os.O_RDWR) | os.O_NOFOLLOW)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_open_as(descriptor, leftover):
                _remove(leftover, directory)
        finally:
            os.close(descriptor)


def _is_open_as(descriptor: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


def _remove(temporary: Path, directory: bool) -> None:
    if directory:
        shutil.rmtree(temporary, ignore_errors=True)
    else:
        temporary.unlink(missing_ok=True)
