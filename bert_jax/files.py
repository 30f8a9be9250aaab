"""Write files and directories atomically, and check their checksums."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bert_jax.local_paths import check_local

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


# Signs of a full disk: the system's error numbers, and phrases in the errors of libraries (Orbax
# and TensorStore, array_record, Arrow, safetensors, SentencePiece, SQLite, TensorFlow).
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


class NotWritten(OSError):
    """A file or directory could not be written.

    Attributes:
        path: the file or directory.
        cause: a short reason.
    """

    def __init__(self, path: str | os.PathLike[str], cause: str):
        super().__init__(f"{os.fspath(path)}: cannot be written: {cause}")
        self.path, self.cause = os.fspath(path), cause

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        return type(self), (self.path, self.cause)  # workers send it to their parent


def full_disk(error: BaseException | None) -> str:
    """Return a phrase for a full disk, "" if neither `error` nor its causes indicate one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return os.strerror(error.errno)
        for words in _FULL_WORDS:
            if words in str(error):
                return words
        error = error.__cause__ or error.__context__
    return ""


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a system error or a full disk in the block into a `NotWritten` that names `path`.

    An error that already names the unwritten file is raised unchanged.
    """
    try:
        yield
    except NotWritten:
        raise
    except Exception as error:
        cause = full_disk(error)
        if isinstance(error, OSError) and error.errno is not None:
            cause = os.strerror(error.errno)
        if not cause:
            raise
        raise NotWritten(path, cause) from error


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`, text as UTF-8, whole or not at all, also after a power cut.

    Raises:
        ValueError: the path has a scheme, such as gs://.
        NotWritten: the file cannot be written; names the file.
    """
    check_local(path)
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Make the names in a directory, as they are now, outlast a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # not supported by some file systems, such as older SMB
            raise
    finally:
        os.close(descriptor)


NAME = "SHA256SUMS"
_HEX_DIGITS = 64


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files in a directory tree to its SHA256SUMS.

    Raises:
      NotWritten: the file cannot be written.
    """
    names = sorted(
        file.relative_to(directory).as_posix()
        for file in directory.rglob("*")
        if file.is_file() and file != directory / NAME
    )
    lines = (f"{file_sha256(directory / name)}  {name}\n" for name in names)
    write_file(directory / NAME, "".join(lines))


def check_checksums(directory: Path, names: Collection[str] | None = None) -> None:
    """Compare the files of a directory with its SHA256SUMS, if it has one.

    Files that are not listed are ignored.

    Args:
      names: the files to compare, if they are listed; None for all.

    Raises:
      ValueError: a file is missing or differs, or SHA256SUMS is damaged; names the file.
    """
    check_local(directory)
    file = directory / NAME
    if not file.is_file():
        return
    for name, digest in _read(file).items():
        if names is not None and name not in names:
            continue
        listed = directory / name
        problem = "missing, but listed" if not listed.is_file() else "differs from its checksum"
        if not listed.is_file() or file_sha256(listed) != digest:
            raise ValueError(
                f"{listed}: {problem} in {NAME}. Restore it from a copy, or, if the change is "
                f"intended, remove {file}"
            )


def _read(file: Path) -> dict[str, str]:
    """Return the checksums by file name."""
    checksums = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = [""]
    for number, line in enumerate(lines, start=1):
        digest, name = line[:_HEX_DIGITS], line[_HEX_DIGITS + 2 :]
        mark = line[_HEX_DIGITS : _HEX_DIGITS + 2]  # two spaces, or " *" for a binary file
        well_formed = set(digest) <= set("0123456789abcdef") and mark in ("  ", " *")
        if not well_formed or not name or ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(
                f"{file}:{number}: damaged: expected a SHA-256 and a name. Restore the file from a "
                "copy, or remove it to skip the check"
            )
        checksums[name] = digest
    return checksums
