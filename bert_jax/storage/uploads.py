"""Write new directories and files to a bucket, without letting unfinished ones look finished."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bert_jax.files import NotWritten, full_disk, temporary_beside, write_file, writing
from bert_jax.local_paths import COPIES, cache_directory, make_directory
from bert_jax.storage.errors import StorageError, located, naming_store_errors
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease, LeaseLostError
from bert_jax.storage.objects import (
    find,
    has_objects,
    list_objects,
    upload,
    upload_directory,
)
from bert_jax.storage.urls import ObjectUrl, parse_location

logger = logging.getLogger(__name__)

LEASE = ".lease"


@contextmanager
def new_tree(url: ObjectUrl, marks: Sequence[str], name: str) -> Iterator[Path]:
    """Yield an empty local directory, and upload its files when the `with` block ends.

    A lease, URL/.lease, ensures that only one process writes. If the process is killed during the
    upload, the lease remains, and the next process removes what was uploaded. If the block or the
    upload fails, nothing remains in the bucket, unless another process has taken over.

    Args:
      url: the URL of the new directory.
      marks: the names of files that mark a directory as complete. The first one that exists is
        uploaded last.
      name: the option that specifies the URL.

    Raises:
      ValueError: there are already objects at or below the URL, another process is writing there,
        or the store does not grant access.
      StorageError: an object cannot be written.
      NotWritten: the local disk is full.
    """
    check_new(url, name)
    interrupted = find(url / LEASE) is not None
    with Lease(url / LEASE, "command", located(url, name)) as lease:
        # Another process may have finished in the meantime.
        names = [url.relative(info.url) for info in list_objects(url)]
        if set(marks) & set(names) or (not interrupted and names != [LEASE]):
            raise ValueError(_not_new(url, name))
        writer = ExclusiveWriter(lease)
        _remove_all(url, writer)
        with _local_directory(url) as directory:
            yield directory
            last = [mark for mark in marks if (directory / mark).is_file()]
            try:
                upload_directory(directory, url, last[0], writer.upload)
            except LeaseLostError:
                raise
            except BaseException:
                try:
                    lease.confirm()
                    _remove_all(url, writer)
                except (LeaseLostError, StorageError) as error:
                    logger.warning("%s: the incomplete upload could not be removed: %s", url, error)
                raise


def check_new(url: ObjectUrl, name: str) -> None:
    """Check that a directory can be written to a URL, before any work is done.

    Raises:
      ValueError: there are already objects at or below the URL, other than the objects of an
        interrupted upload, or the store does not grant access.
      StorageError: the store does not respond.
    """
    with naming_store_errors(name, url):
        if not url.key:
            raise ValueError(f"{located(url, name)}: this is a whole bucket. Specify a directory.")
        if find(url) is not None:
            raise ValueError(f"{located(url, name)}: this is an object. Specify another URL.")
        if find(url / LEASE) is None and has_objects(url):
            raise ValueError(_not_new(url, name))


def _not_new(url: ObjectUrl, name: str) -> str:
    return (
        f"{located(url, name)}: the bucket already contains objects below this URL. Choose another "
        "one."
    )


def _remove_all(url: ObjectUrl, writer: ExclusiveWriter) -> None:
    for info in list(list_objects(url)):
        if info.url != url / LEASE:
            writer.remove(info.url, info.version)


@contextmanager
def _local_directory(url: ObjectUrl) -> Iterator[Path]:
    """Yield an empty directory, which is removed at the end."""
    path = _local_path(url)
    with writing(path):
        make_directory(path.parent)
    try:
        with temporary_beside(path, directory=True) as temporary:
            COPIES[str(temporary)] = str(url)
            yield temporary
    except OSError as error:
        if isinstance(error, NotWritten) or not (cause := full_disk(error)):
            raise
        raise NotWritten(path, cause) from error


def _local_path(url: ObjectUrl) -> Path:
    digest = hashlib.sha256(str(url).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return cache_directory() / "uploads" / digest / url.name


@contextmanager
def new_files(url: ObjectUrl, name: str) -> Iterator[Path]:
    """Yield an empty local directory, and upload its files to a new one when the `with` block ends.

    No lease is needed, since each file is complete by itself.

    Args:
      url: the URL of the new directory.
      name: the option that specifies the URL.

    Raises:
      ValueError: see `check_new`.
      StorageError: an object cannot be written.
      NotWritten: the local disk is full.
    """
    check_new(url, name)
    with _local_directory(url) as directory:
        yield directory
        for file in sorted(directory.rglob("*")):
            if file.is_file():
                upload(file, url / file.relative_to(directory).as_posix())


def check_new_file(url: ObjectUrl, name: str) -> None:
    """Check that a file can be written to a URL, before any work is done.

    Raises:
      ValueError: there are objects below the URL, or the store does not grant access.
      StorageError: the store does not respond.
    """
    with naming_store_errors(name, url):
        if not url.key:
            raise ValueError(f"{located(url, name)}: this is a whole bucket. Specify a file.")
        if has_objects(url):
            raise ValueError(f"{located(url, name)}: this is a directory. Specify a file.")


@contextmanager
def local_output(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a local path to write a file to. If `path` is a URL, the file is uploaded afterwards.

    Raises:
      StorageError: the object cannot be written. The message contains the path of the local file.
      NotWritten: the local disk is full.
    """
    location = parse_location(path)
    if not isinstance(location, ObjectUrl):
        yield location
        return
    local = _local_path(location)
    with writing(local):
        make_directory(local.parent)
    yield local
    try:
        upload(local, location)
    except StorageError as error:
        detail = f"{error.explanation}. The file was kept as {local}"
        raise OSError(f"{location}: {detail}") from error
    shutil.rmtree(local.parent, ignore_errors=True)


def write_result(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Write a file or an object atomically, and create a file's directory if necessary.

    Raises:
      ValueError: the path has a scheme that is not supported.
      StorageError: the object cannot be written.
      NotWritten: the file cannot be written.
    """
    with local_output(path) as file:
        make_directory(file.parent)
        write_file(file, content)


def write_json(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Write values to a JSON file; see `write_result`."""
    write_result(path, json.dumps(values, indent=1) + "\n")
