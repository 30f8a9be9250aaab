"""Read, write, list and remove objects, retrying requests and explaining errors."""

from __future__ import annotations

import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeVar, assert_never

from bert_jax.local_paths import Scheme
from bert_jax.storage.errors import (
    ConflictError,
    MissingObjectError,
    Problem,
    StorageError,
    storage_error,
)
from bert_jax.storage.gcs import EMULATOR, Gcs
from bert_jax.storage.retries import with_retries
from bert_jax.storage.s3 import ENDPOINT, S3
from bert_jax.storage.store import ABSENT, MAX_SINGLE_WRITE, ObjectInfo, Page, Store
from bert_jax.storage.urls import ObjectUrl

T = TypeVar("T")

READ_BYTES = 8 << 20
_REMOVALS = 16  # This many objects are removed at the same time.
_ENDPOINTS = {"gs": EMULATOR, "s3": ENDPOINT}


def store_of(url: ObjectUrl) -> Store:
    """Return the store that contains an object.

    Raises:
      ValueError: the library for this kind of store is not installed.
    """
    return _open_store(url.scheme, os.environ.get(_ENDPOINTS[url.scheme], ""), os.getpid())


@lru_cache(maxsize=8)
def _open_store(scheme: Scheme, endpoint: str, process: int) -> Store:
    """Open connections to a store; each endpoint and each process needs its own connections."""
    match scheme:
        case "gs":
            return Gcs()
        case "s3":
            return S3()
        case _:
            assert_never(scheme)


def _request(
    url: ObjectUrl,
    action: str,
    request: Callable[[Store], T],
    missing: Problem = "missing",
    check: Callable[[], None] = lambda: None,
) -> T:
    """Make a request, and report `missing` as the problem if the store finds no such object."""
    store = store_of(url)

    def classify(error: BaseException) -> Problem | None:
        problem = _problem(store, url, error)
        return missing if problem == "missing" else problem

    return with_retries(partial(request, store), classify, url, action, store, check)


def _problem(store: Store, url: ObjectUrl, error: BaseException) -> Problem | None:
    """Classify an error, and find out what is missing or why the store denies access."""
    problem = store.problem(error)
    unexplained = problem == "denied" and url.scheme == "s3"
    if problem != "missing" and not unexplained:
        return problem
    try:
        store.list_page(ObjectUrl(url.scheme, url.bucket, "-"), recursive=False, token=None)
    except Exception as cause:
        reason = store.problem(cause)
        if problem == "denied":  # S3's responses to HEAD requests contain no reason.
            return "credentials" if reason == "credentials" else "denied"
        return "bucket" if reason in ("missing", "bucket") else "missing"
    return problem


def stat(url: ObjectUrl) -> ObjectInfo:
    """Describe an object.

    Raises:
      MissingObjectError: there is no such object.
      StorageError: the bucket does not exist, or the store denies access or does not respond.
    """
    if not url.key:
        raise storage_error(url, "missing")
    return _request(url, "reading", lambda store: store.stat(url))


def find(url: ObjectUrl) -> ObjectInfo | None:
    """Describe an object, or return None if it does not exist; see `stat`."""
    if not url.key:
        return None
    try:
        return stat(url)
    except MissingObjectError:
        return None


def list_objects(url: ObjectUrl) -> Iterator[ObjectInfo]:
    """Yield all objects below a URL, in the order of their keys; see `stat` for errors."""
    for page in _pages(url, recursive=True):
        yield from page.objects


def list_directory(url: ObjectUrl) -> tuple[list[ObjectInfo], list[ObjectUrl]]:
    """Return the objects directly below a URL, and the URLs of the directories there."""
    pages = list(_pages(url, recursive=False))
    return (
        [info for page in pages for info in page.objects],
        [directory for page in pages for directory in page.directories],
    )


def _pages(url: ObjectUrl, *, recursive: bool) -> Iterator[Page]:
    token: str | None = None
    while True:

        def read_page(store: Store, token: str | None = token) -> Page:
            return store.list_page(url, recursive=recursive, token=token)

        try:
            page = _request(url, "listing", read_page)
        except MissingObjectError as error:  # In a listing, only the bucket can be missing.
            raise StorageError(url, "bucket") from error
        yield page
        token = page.token
        if token is None:
            return


def has_objects(url: ObjectUrl) -> bool:
    """Return whether there are objects below a URL."""
    return next(list_objects(url), None) is not None


def read_range(info: ObjectInfo, start: int, end: int) -> bytes:
    """Read a range of bytes from an object that has not changed since it was described.

    Raises:
      ConflictError: the object was replaced.
      StorageError: the object cannot be read.
    """
    end = min(end, info.num_bytes)
    if start >= end:
        return b""

    def read(store: Store) -> bytes:
        content = store.read(info, start, end)
        if len(content) != end - start:
            raise TimeoutError(f"received {len(content)} of {end - start} bytes")
        return content

    try:
        return _request(info.url, "reading", read)
    except MissingObjectError as error:
        if find(info.url) is None:
            raise
        # If a generation was replaced, GCS reports it as missing.
        raise ConflictError(info.url, "conflict") from error


def read_bytes(url: ObjectUrl) -> bytes:
    """Return the content of an object; see `stat` for errors."""
    return read_versioned(url)[0]


def read_versioned(url: ObjectUrl) -> tuple[bytes, ObjectInfo]:
    """Return the content of an object and the description of the version that was read."""
    while True:
        info = stat(url)
        try:
            ranges = range(0, info.num_bytes, READ_BYTES)
            return b"".join(read_range(info, at, at + READ_BYTES) for at in ranges), info
        except ConflictError:
            continue  # Read the new version.


def write_bytes(
    url: ObjectUrl,
    content: str | bytes,
    condition: str | None = None,
    *,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write an object. Readers see either the old content or all of the new content.

    Args:
      url: the object.
      content: the content; text is encoded as UTF-8. If there is a condition, the content must be
        small.
      condition: `ABSENT` if the object must not exist yet, the version that it must have, or None
        for no condition. If there is a condition and it matters which process wrote the object, no
        two processes may write the same content.
      check: called before every attempt; raises an error if this process may no longer write.

    Returns:
      The version that was written.

    Raises:
      ConflictError: the condition does not hold.
      StorageError: the object cannot be written.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    assert url.key
    # For example, the manifest of a corpus with very many inputs is large.
    if len(data) > MAX_SINGLE_WRITE:
        assert condition is None, "large objects are written without a condition"
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            return upload(Path(file.name), url, check=check)
    try:
        return _request(
            url, "writing", lambda store: store.write(url, data, condition), check=check
        )
    # Either the version to be replaced is gone, or the bucket does not exist.
    except MissingObjectError as error:
        raise ConflictError(url, "conflict") from error
    except ConflictError:
        # If an attempt succeeds but its response is lost, the next attempt conflicts with it.
        existing = find(url)
        if existing is None or existing.num_bytes != len(data):
            raise
        found, info = read_versioned(url)
        if found != data:
            raise
        return info.version


def create(url: ObjectUrl, content: str | bytes) -> None:
    """Write an object that must not exist yet; see `write_bytes`."""
    write_bytes(url, content, ABSENT)


def upload(
    file: Path,
    url: ObjectUrl,
    *,
    new: bool = False,
    check: Callable[[], None] = lambda: None,
) -> str:
    """Write a local file of any size to an object, which appears when it is complete.

    Args:
      file: the file.
      url: the object.
      new: whether the object must not exist yet.
      check: called before every attempt; raises an error if this process may no longer write.

    Returns:
      The version that was written.

    Raises:
      ConflictError: `new`, but the object exists.
      StorageError: the object cannot be written.
    """
    expected = file.stat().st_size
    # If an upload takes several requests, the store may lose track of it. It then starts over.
    _request(
        url,
        "writing",
        lambda store: store.upload(url, file, new=new),
        missing="transient",
        check=check,
    )
    written = stat(url)
    if written.num_bytes != expected:
        detail = f"{written.num_bytes} instead of {expected} bytes were stored"
        raise StorageError(url, None, detail)
    return written.version


def upload_directory(
    directory: Path,
    url: ObjectUrl,
    last: str,
    upload_file: Callable[[Path, ObjectUrl], object] = upload,
) -> None:
    """Upload all files in a directory tree. The file named `last` marks the upload as complete.

    Args:
      directory: the directory.
      url: the URL of the new directory.
      last: the name of the file that is uploaded last, relative to the directory.
      upload_file: uploads one file.

    Raises:
      StorageError: an object cannot be written.
    """
    names = sorted(
        file.relative_to(directory).as_posix() for file in directory.rglob("*") if file.is_file()
    )
    assert last in names
    for name in sorted(names, key=lambda name: name == last):
        upload_file(directory / name, url / name)


def remove(
    url: ObjectUrl, version: str | None = None, *, check: Callable[[], None] = lambda: None
) -> None:
    """Remove an object if it exists.

    Args:
      url: the object.
      version: the version that the object must have, or None to remove it in any case. Some
        S3-compatible stores ignore this condition.
      check: called before every attempt; raises an error if this process may no longer write.

    Raises:
      ConflictError: the object has another version.
      StorageError: the object cannot be removed.
    """
    try:
        _request(url, "removing", lambda store: store.remove(url, version), check=check)
    except MissingObjectError:
        return
    except ConflictError:  # some stores report this for an object that does not exist
        if find(url) is not None:
            raise


def remove_all(urls: Iterable[ObjectUrl], *, check: Callable[[], None] = lambda: None) -> None:
    """Remove objects, several at a time; see `remove`."""
    with ThreadPoolExecutor(_REMOVALS, thread_name_prefix="remove") as threads:
        deque(threads.map(partial(remove, check=check), urls), maxlen=0)


def remove_tree(url: ObjectUrl) -> None:
    """Remove all objects below a URL."""
    remove_all([info.url for info in list_objects(url)])
