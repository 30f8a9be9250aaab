"""Write files and directories atomically, and verify their checksums."""

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

_MAX_HOST_LENGTH = 32  # File systems allow 255 bytes for the whole name.


@contextmanager
def temporary_beside(path: Path, *, directory: bool = False) -> Iterator[Path]:
    """Create an empty file or directory next to `path`, to be filled and then renamed to `path`.

    If the file or directory has not been renamed at the end of the `with` block, it is removed.

    During the block, the file or directory is locked. Therefore, an unlocked one must be left over
    from a killed process on this machine, and leftovers for the same path are removed first. The
    name includes the host name, because locks on a shared file system may be visible to only one
    machine. A process ID is not used as a lock, because the system may assign it to another
    process.

    Raises:
        OSError: the file or directory cannot be created.
    """
    _remove_leftovers(path)
    # The name contains the time instead of the process ID, because a container may reuse the ID
    # while a leftover that cannot be removed still exists.
    temporary = path.with_name(f"{_prefix(path)}{time.time_ns()}.tmp")
    descriptor = _create_and_lock(temporary, directory)
    try:
        yield temporary
    finally:
        if _is_open_as(descriptor, temporary):
            _remove(temporary, directory)
        os.close(descriptor)


def _prefix(path: Path) -> str:
    host = re.sub(r"[^A-Za-z0-9-]", "-", socket.gethostname())[:_MAX_HOST_LENGTH]
    return f"{path.name}.{host}."


def _create_and_lock(temporary: Path, directory: bool) -> int:
    """Create and lock `temporary`, and return the file descriptor that holds the lock."""
    while True:
        if directory:
            temporary.mkdir()
            descriptor = os.open(temporary, os.O_RDONLY)
        else:
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        # Continue on file systems without locks, where leftovers are never removed.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_open_as(descriptor, temporary):
            return descriptor
        # Another process mistook the file or directory for a leftover, and removed it.
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    prefix = _prefix(path)
    with suppress(OSError):  # The directory may be missing or unreadable.
        for name in os.listdir(path.parent):
            if name.startswith(prefix) and re.fullmatch(r"\d+\.tmp", name.removeprefix(prefix)):
                _remove_unlocked(path.with_name(name))


def _remove_unlocked(leftover: Path) -> None:
    directory = leftover.is_dir()
    # Opening fails if another user owns the leftover, and locking fails if its process is alive.
    with suppress(OSError):
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


# Signs of a full disk: system error numbers, and phrases in error messages from libraries (Orbax
# and TensorStore, array_record, Arrow, safetensors, SentencePiece, SQLite, TensorFlow).
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FULL_WORDS = ("No space left on device", "Disk quota exceeded", "database or disk is full")


class NotWritten(OSError):
    """An error for a file or directory that could not be written.

    Attributes:
        path: the file or directory.
        cause: a short reason.
    """

    def __init__(self, path: str | os.PathLike[str], cause: str):
        super().__init__(f"{os.fspath(path)}: cannot be written: {cause}")
        self.path, self.cause = os.fspath(path), cause

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        # This method lets worker processes send the error to their parent.
        return type(self), (self.path, self.cause)


def full_disk(error: BaseException | None) -> str:
    """Return a phrase such as "No space left on device" if the disk is full, or "" otherwise.

    Args:
        error: the exception; its causes are checked as well.
    """
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
    """Convert system and disk-full errors in a `with` block to a `NotWritten` error for `path`.

    A `NotWritten` error that is raised in the block already contains its path, so it is kept.
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
    """Return the SHA-256 checksum of a file in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` to `path` atomically, so that a power failure leaves no partial file.

    Args:
        path: the file to write, which is replaced if it exists.
        content: the content as bytes, or as text to be encoded as UTF-8.

    Raises:
        ValueError: the path has a scheme, such as gs://.
        NotWritten: the file cannot be written.
    """
    check_local(path)
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Flush a directory's entries to disk, so that they survive a power failure."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems, such as older versions of SMB, cannot flush a directory.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


CHECKSUMS_NAME = "SHA256SUMS"
_DIGEST_LENGTH = 64


def write_checksums(directory: Path) -> None:
    """Write the checksums of all files in a directory tree to a SHA256SUMS file.

    Raises:
        NotWritten: the file cannot be written.
    """
    names = sorted(
        file.relative_to(directory).as_posix()
        for file in directory.rglob("*")
        if file.is_file() and file != directory / CHECKSUMS_NAME
    )
    lines = (f"{file_sha256(directory / name)}  {name}\n" for name in names)
    write_file(directory / CHECKSUMS_NAME, "".join(lines))


def check_checksums(directory: Path, names: Collection[str] | None = None) -> None:
    """Check the files in a directory against its SHA256SUMS file, if there is one.

    Files that are not listed are ignored.

    Args:
        directory: the directory.
        names: which of the listed files to check; None checks all of them.

    Raises:
        ValueError: a listed file is missing or differs, or SHA256SUMS is damaged.
    """
    check_local(directory)
    file = directory / CHECKSUMS_NAME
    if not file.is_file():
        return
    for name, digest in _read_checksums(file).items():
        if names is not None and name not in names:
            continue
        listed = directory / name
        problem = "missing, but listed" if not listed.is_file() else "differs from its checksum"
        if not listed.is_file() or file_sha256(listed) != digest:
            raise ValueError(
                f"{listed}: {problem} in {CHECKSUMS_NAME}. Restore the file from a copy or, if the "
                f"change is intended, remove {file}"
            )


def _read_checksums(file: Path) -> dict[str, str]:
    """Return a dict from file name to checksum, read from a SHA256SUMS file."""
    checksums = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        lines = [""]
    for number, line in enumerate(lines, start=1):
        digest, name = line[:_DIGEST_LENGTH], line[_DIGEST_LENGTH + 2 :]
        separator = line[
            _DIGEST_LENGTH : _DIGEST_LENGTH + 2
        ]  # The separator is two spaces, or " *" for a binary file.
        well_formed = set(digest) <= set("0123456789abcdef") and separator in ("  ", " *")
        if not well_formed or not name or ".." in Path(name).parts or Path(name).is_absolute():
            raise ValueError(
                f"{file}:{number}: damaged: expected a SHA-256 checksum and a file name. Restore "
                "the file from a copy, or remove it to skip the check"
            )
        checksums[name] = digest
    return checksums
