"""Read files that may be on a local file system or in a bucket."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO

from bert_jax.files import file_sha256, temporary_beside, writing
from bert_jax.local_paths import COPIES
from bert_jax.storage.cache import local_file, local_tree
from bert_jax.storage.errors import MissingObjectError, located, naming_store_errors
from bert_jax.storage.objects import find, has_objects, list_directory, list_objects
from bert_jax.storage.reader import ObjectReader
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import Location, ObjectUrl, parse_location

# While inputs are being found, the same objects are looked up several times within a few seconds.
_REMEMBERED_SECONDS = 10.0
_CHUNK_BYTES = 1 << 20
_remembered: dict[ObjectUrl, tuple[float, ObjectInfo]] = {}


def described(url: ObjectUrl) -> ObjectInfo | None:
    """Return the description of an object, at most ten seconds old, or None if it does not exist.

    Raises:
      StorageError: the bucket does not exist, or the store denies access or does not respond.
    """
    read_at, info = _remembered.get(url, (0.0, None))
    if info is None or time.monotonic() - read_at > _REMEMBERED_SECONDS:
        info = find(url)
        if info is not None:
            _remember(info)
    return info


def _existing(url: ObjectUrl) -> ObjectInfo:
    info = described(url)
    if info is None:
        raise MissingObjectError(url, "missing")
    return info


def _remember(info: ObjectInfo) -> None:
    _remembered[info.url] = time.monotonic(), info


def objects_below(url: ObjectUrl) -> list[ObjectInfo]:
    """Return all objects below a URL, except those with a component that begins with "." or "_"."""
    infos = [
        info
        for info in list_objects(url)
        if not any(part.startswith((".", "_")) for part in url.relative(info.url).split("/"))
    ]
    for info in infos:
        _remember(info)
    return infos


def open_location(location: Location) -> io.RawIOBase:
    """Open a file for unbuffered binary reading.

    Raises:
      OSError: the file cannot be read.
    """
    if isinstance(location, ObjectUrl):
        return ObjectReader(_existing(location))
    return open(location, "rb", buffering=0)


def seekable_file(location: Location) -> IO[bytes]:
    """Open a file for reading bytes at any position; see `open_location`."""
    return io.BufferedReader(open_location(location), _CHUNK_BYTES)


def arrow_source(location: Location) -> AbstractContextManager[Path | IO[bytes]]:
    """Return the argument from which Arrow reads a file. Local files are opened by Arrow itself."""
    return seekable_file(location) if isinstance(location, ObjectUrl) else nullcontext(location)


def exists(location: Location) -> bool:
    """Return whether there is a file or, on a local file system, a directory."""
    if isinstance(location, ObjectUrl):
        return find(location) is not None
    return location.exists()


def is_file(location: Location) -> bool:
    """Return whether there is a file or an object."""
    return find(location) is not None if isinstance(location, ObjectUrl) else location.is_file()


def is_directory(location: Location) -> bool:
    """Return whether there is a directory or, in a bucket, whether there are objects below a URL.

    Raises:
      StorageError: the bucket does not exist, or the store denies access or does not respond.
    """
    return has_objects(location) if isinstance(location, ObjectUrl) else location.is_dir()


def file_names(directory: Location) -> list[str]:
    """Return the sorted names of the files directly in a directory."""
    if isinstance(directory, ObjectUrl):
        return sorted(info.url.name for info in list_directory(directory)[0])
    return sorted(path.name for path in directory.iterdir() if path.is_file())


def absolute(location: Location) -> str:
    """Return the absolute path of a file or directory on a local file system, or a URL."""
    return str(location) if isinstance(location, ObjectUrl) else str(location.resolve())


def local_copy(location: Location, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Return a local path unchanged, or the path of a copy of the objects at or below a URL.

    Args:
      location: the path or the URL.
      wanted: called with an object's name relative to a directory's URL; returns whether the object
        is needed.

    Raises:
      StorageError: an object cannot be read.
      NotWritten: the copy cannot be written.
    """
    if not isinstance(location, ObjectUrl):
        return location
    if location.key and find(location) is not None:
        copy = local_file(location)
    else:
        copy = local_tree(location, wanted)
    COPIES[str(copy)] = str(location)
    return copy


def local_input(path: str | os.PathLike[str], name: str = "") -> Path:
    """Return the local path of an input, after copying it from the bucket if it is a URL.

    The copies are kept until this process ends. In messages that pass through `local_paths.shown`,
    such as the messages of the command line, URLs replace the paths of copies.

    Args:
      path: the path, which is returned unchanged, or the URL of a file or a directory.
      name: the option or config key that specifies it, or "" if there is none.

    Raises:
      ValueError: there is nothing at or below the URL, or the store does not grant access.
      StorageError: an object cannot be read.
      NotWritten: the copy cannot be written.
    """
    location = parse_location(path, name)
    if not isinstance(location, ObjectUrl):
        return location
    try:
        with naming_store_errors(name, location):
            return local_copy(location)
    except MissingObjectError as error:
        raise ValueError(nothing_at(location, name)) from error


def nothing_at(url: ObjectUrl, name: str = "") -> str:
    """Return the error message for a URL with no objects at or below it."""
    return f"{located(url, name)}: there is no such object or directory in the bucket."


def copy_object(url: ObjectUrl, path: Path) -> None:
    """Copy an object to a file on the local disk, which appears when it is complete.

    Raises:
      StorageError: the object cannot be read.
      NotWritten: the file cannot be written.
    """
    with seekable_file(url) as source:
        _copy(source, path)


def copy_version(info: ObjectInfo, path: Path) -> None:
    """Copy the version of an object that was described; see `copy_object`.

    Raises:
      MissingObjectError: the object was removed.
      ConflictError: the object was replaced.
    """
    with io.BufferedReader(ObjectReader(info), _CHUNK_BYTES) as source:
        _copy(source, path)


def _copy(source: IO[bytes], path: Path) -> None:
    with writing(path), temporary_beside(path) as temporary:
        with open(temporary, "wb") as target:
            shutil.copyfileobj(source, target, _CHUNK_BYTES)
        os.replace(temporary, path)


def num_bytes_of(location: Location) -> int:
    """Return the size of a file; see `open_location`."""
    if isinstance(location, ObjectUrl):
        return _existing(location).num_bytes
    return location.stat().st_size


def modified_ns(location: Location) -> int:
    """Return when a file was modified, in nanoseconds since 1970; see `open_location`."""
    if isinstance(location, ObjectUrl):
        return round(_existing(location).modified * 1000) * 1_000_000
    return location.stat().st_mtime_ns


def sha256_of(location: Location) -> str:
    """Return the SHA-256 checksum of a file in hexadecimal; see `open_location`."""
    if not isinstance(location, ObjectUrl):
        return file_sha256(location)
    digest = hashlib.sha256()
    with seekable_file(location) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
