"""Files that are there whole or not at all, and their checksums."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from bert_jax.local_paths import check_local
from bert_jax.temporary import temporary_beside


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_file(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`, text as UTF-8, whole or not at all, also after a power cut.

    Raises:
        ValueError: the path has a scheme, such as gs://.
        OSError: it cannot be written; names it.
    """
    check_local(path)
    try:
        with temporary_beside(path) as temporary:
            with open(temporary, "wb") as file:
                file.write(content.encode("utf-8") if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"{path} cannot be written: {error}") from error


def sync_directory(directory: str | os.PathLike[str]) -> None:
    """Make the names in a directory, as they are now, outlast a power cut."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
