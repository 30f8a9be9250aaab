"""Temporary files and directories beside their targets, and removal of what kills left of them."""

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
    """Make an empty file or directory beside `path`, to be filled and then renamed to `path`.

    If it is not renamed, it is removed at the end. It is locked until then: by that, whatever
    processes of this machine that were killed left for the same path is recognized and removed
    first. The name holds the machine's, since a lock on a shared file system may be known to
    one machine only; and a lock, unlike a process id, is never taken over by another process.

    Raises:
        OSError: it cannot be made.
    """
    _remove_leftovers(path)
    # Not the process id, which a container may have again while a leftover cannot be removed.
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
    """Make `temporary` and return its descriptor, which holds a lock on it."""
    while True:
        if directory:
            temporary.mkdir()
            descriptor = os.open(temporary, os.O_RDONLY)
        else:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # Without locks on this file system, nobody removes leftovers either.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_open_as(descriptor, temporary):
            return descriptor
        os.close(descriptor)  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    prefix = _prefix(path)
    with suppress(OSError):  # such as a directory that does not exist or cannot be listed
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
