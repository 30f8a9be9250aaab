"""Keep verified local copies of objects, in a directory whose size is bounded."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bert_jax.files import NotWritten, file_sha256, temporary_beside, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.storage.errors import ConflictError, MissingObjectError, StorageError
from bert_jax.storage.gcs import crc32c_of
from bert_jax.storage.objects import list_objects, read_range, stat
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl

logger = logging.getLogger(__name__)

DEFAULT_GIB = 32.0
_DOWNLOAD_BYTES = 32 << 20
_ATTEMPTS = 3
# These empty files serve as locks. Every process that uses a copy holds a shared lock on the first
# file, and the process that downloads the copy holds an exclusive lock on the second file.
_LOCK, _DOWNLOAD = "lock", "download"
# This file contains an upper bound on the size of all copies. It is locked while a copy is added.
_ROOM = "room"

# The open lock files of copies that must be kept until this process ends.
_kept: dict[Path, int] = {}

# An object, its name within the copied directory ("" if it is copied on its own), and its SHA-256.
_Part = tuple[ObjectInfo, str, str | None]


@dataclass(frozen=True)
class Cache:
    """A directory of copies of objects, which any number of processes may share.

    A copy's path contains a hash of the object's URL and version, so a replaced object is read
    again. A copy appears when it is complete and its checksum has been verified. When the copies
    need more than `max_bytes`, the least recently used ones that no process is using are removed
    until a tenth of `max_bytes` is free.

    Attributes:
      directory: the directory, which is created if it does not exist.
      max_bytes: the maximum size of all copies together.
    """

    directory: Path
    max_bytes: int

    @contextmanager
    def copy_of(self, info: ObjectInfo, sha256: str | None = None) -> Iterator[Path]:
        """Return a local copy of an object, which is kept at least until the block ends.

        Args:
          info: the object.
          sha256: the checksum in hex that the content must have, or None if it is unknown.

        Raises:
          ConflictError: the object was replaced.
          StorageError: the object cannot be read, or does not have the checksum.
          NotWritten: the disk is full, or the directory cannot be written.
        """
        descriptor, path = self._hold(info.url, [(info, "", sha256)])
        try:
            yield path
        finally:
            os.close(descriptor)

    def keep(self, info: ObjectInfo, sha256: str | None = None) -> Path:
        """Return a local copy of an object that is kept until this process ends; see `copy_of`."""
        return self._keep(info.url, [(info, "", sha256)])

    def keep_tree(self, url: ObjectUrl, infos: Iterable[ObjectInfo]) -> Path:
        """Return a local directory with copies of objects below `url`; see `keep`."""
        return self._keep(url, [(info, url.relative(info.url), None) for info in infos])

    def _keep(self, url: ObjectUrl, parts: Sequence[_Part]) -> Path:
        descriptor, path = self._hold(url, parts)
        with suppress(KeyError):  # One open file per copy is enough.
            os.close(_kept.pop(path))
        _kept[path] = descriptor
        return path

    def _hold(self, url: ObjectUrl, parts: Sequence[_Part]) -> tuple[int, Path]:
        """Return a copy and the open file that holds a shared lock on it."""
        folder = self.directory / _key_of(url, parts)
        path = folder / url.name
        num_bytes = sum(info.num_bytes for info, _, _ in parts)
        with writing(self.directory):
            descriptor = _locked(folder / _LOCK, fcntl.LOCK_SH)
        try:
            if _size(path) != num_bytes:
                with writing(self.directory):
                    download = _locked(folder / _DOWNLOAD, fcntl.LOCK_EX)
                try:
                    # Another process may have copied the object in the meantime.
                    if _size(path) != num_bytes:
                        self._copy(path, parts, num_bytes)
                finally:
                    os.close(download)
            os.utime(descriptor)  # Record the time of this use.
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor, path

    def _copy(self, path: Path, parts: Sequence[_Part], num_bytes: int) -> None:
        is_directory = bool(parts[0][1])
        with writing(path), temporary_beside(path, directory=is_directory) as temporary:
            self._reserve(temporary, parts, num_bytes)
            for info, name, sha256 in parts:
                download(info, temporary / name if name else temporary, sha256)
            if path.is_dir():
                shutil.rmtree(path)  # The copy is damaged.
            os.replace(temporary, path)

    def _reserve(self, temporary: Path, parts: Sequence[_Part], num_bytes: int) -> None:
        """Create files with their final sizes, so that other processes count this space as used."""
        with writing(self.directory):
            room = _locked(self.directory / _ROOM, fcntl.LOCK_EX)
        try:
            used = self._make_room(num_bytes, _recorded(room))
            for info, name, _ in parts:
                target = temporary / name if name else temporary
                make_directory(target.parent)
                with open(target, "wb") as file:
                    file.truncate(info.num_bytes)
            _record(room, used + num_bytes)
        finally:
            os.close(room)

    def _make_room(self, num_bytes: int, used: int | None) -> int:
        """Remove the least recently used copies until `num_bytes` more bytes fit.

        Args:
          num_bytes: the number of bytes.
          used: an upper bound on the size of all copies; None if it is unknown. The actual sizes
            are determined only if the bound is unknown or too large, since this takes a second for
            10,000 copies.

        Returns:
          The size of the remaining copies.

        Raises:
          NotWritten: the object does not fit into the cache, or the disk is too full.
        """
        if num_bytes > self.max_bytes:
            raise NotWritten(
                self.directory,
                f"the cache may hold {self.max_bytes:,} bytes, but one copy needs {num_bytes:,}",
            )
        free = shutil.disk_usage(self.directory).free
        if used is not None and used + num_bytes <= self.max_bytes and num_bytes <= free:
            return used
        entries = sorted(_entries(self.directory))
        used = sum(size for _, size, _ in entries)
        fits = used + num_bytes <= self.max_bytes and num_bytes <= free
        for _, size, folder in () if fits else entries:
            if used + num_bytes <= 0.9 * self.max_bytes and num_bytes <= free:
                break
            if _removed(folder):
                used, free = used - size, free + size
        if num_bytes > free:
            raise NotWritten(self.directory, os.strerror(errno.ENOSPC))
        if used + num_bytes > self.max_bytes:
            raise NotWritten(
                self.directory,
                f"the copies in use need {used:,} of the {self.max_bytes:,} bytes that the cache "
                "may hold",
            )
        return used


def default_cache() -> Cache:
    """Return the cache for everything except training data, in `cache_directory()`."""
    return Cache(cache_directory() / "objects", int(DEFAULT_GIB * (1 << 30)))


def local_file(url: ObjectUrl) -> Path:
    """Return a local copy of an object, which is kept until this process ends.

    Raises:
      StorageError: the object cannot be read.
      NotWritten: the copy cannot be written.
    """
    while True:
        # The object was replaced while it was read, so read the new version.
        with suppress(ConflictError):
            return default_cache().keep(stat(url))


def local_tree(url: ObjectUrl, wanted: Callable[[str], bool] = lambda name: True) -> Path:
    """Return a local directory with copies of all objects below a URL.

    The directory's name depends on the versions of all objects, so it never mixes versions.

    Args:
      url: the URL of the directory.
      wanted: called with an object's name relative to `url`; returns whether it is needed.

    Raises:
      MissingObjectError: there are no such objects.
      StorageError: an object cannot be read.
      NotWritten: the copy cannot be written.
    """
    while True:
        infos = [info for info in list_objects(url) if wanted(url.relative(info.url))]
        if not infos:
            raise MissingObjectError(url, "missing")
        with suppress(ConflictError):
            return default_cache().keep_tree(url, infos)


def download(info: ObjectInfo, path: Path, sha256: str | None = None) -> None:
    """Write an object to an existing file, and verify the file's checksum.

    Raises:
      ConflictError: the object was replaced.
      StorageError: the object cannot be read, or its content differs from its checksum.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        with open(path, "r+b") as file:  # The file already has its final size.
            for start in range(0, info.num_bytes, _DOWNLOAD_BYTES):
                file.write(read_range(info, start, start + _DOWNLOAD_BYTES))
        fault = _fault(path, info, sha256)
        if fault is None:
            # The size of the file does not show whether its content is on disk.
            with open(path, "r+b") as file:
                os.fsync(file.fileno())
            return
        logger.warning("%s: attempt %d to copy this object failed: %s", info.url, attempt, fault)
    raise StorageError(info.url, None, f"{fault} in each of {_ATTEMPTS} attempts to copy it")


def _key_of(url: ObjectUrl, parts: Sequence[_Part]) -> str:
    text = "\n".join([str(url), *(f"{info.url} {info.version}" for info, _, _ in parts)])
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return f"{digest[:2]}/{digest[2:32]}"


def _size(path: Path) -> int | None:
    """Return the size of a file, or of all files below a directory; None if it does not exist."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        return sum(os.stat(file).st_size for file in files)
    except FileNotFoundError:
        return None


def _locked(path: Path, kind: int) -> int:
    """Open and lock a file that may be removed at any time by `_removed`."""
    while True:
        try:
            make_directory(path.parent)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, kind)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)


def _entries(directory: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield (time of last use, size, folder) for each copy."""
    for folder in directory.glob("??/*"):
        with suppress(FileNotFoundError):
            last_use = (folder / _LOCK).stat().st_mtime
            yield last_use, _size(folder) or 0, folder


def _removed(folder: Path) -> bool:
    """Remove a copy unless a process is using it, and return whether it was removed."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    else:
        # The lock file is removed last, because a process that creates a new one may use any copy
        # next to it.
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != _LOCK:
                entry.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(descriptor)


def _recorded(room: int) -> int | None:
    """Return the number in a file, or None if it contains none."""
    content = os.pread(room, 32, 0)
    return int(content) if content.isdigit() else None


def _record(room: int, num_bytes: int) -> None:
    os.ftruncate(room, 0)
    os.pwrite(room, b"%d" % num_bytes, 0)


def _fault(file: Path, info: ObjectInfo, sha256: str | None) -> str | None:
    """Describe how a copy differs from the object, or return None if it is equal."""
    size = file.stat().st_size
    if size != info.num_bytes:
        return f"{size} instead of {info.num_bytes} bytes were received"
    if sha256 is not None and file_sha256(file) != sha256:
        return "the SHA-256 checksum differs"
    if info.md5 is not None:
        with open(file, "rb") as content:
            digest = hashlib.file_digest(content, lambda: hashlib.md5(usedforsecurity=False))
        return None if digest.hexdigest() == info.md5 else "the MD5 checksum differs"
    if info.crc32c is not None and crc32c_of(_chunks(file)) != info.crc32c:
        return "the CRC32C checksum differs"
    return None


def _chunks(file: Path) -> Iterator[bytes]:
    with open(file, "rb") as content:
        while chunk := content.read(1 << 20):
            yield chunk
