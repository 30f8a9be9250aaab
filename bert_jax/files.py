"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.local_paths import check_local
from bert_jax.temporary import temporary_beside

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
