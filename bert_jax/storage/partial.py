"""Copy directories from a bucket, but fetch their larger files only when they are needed.

A file with the name `REMOTE_NAME` in a directory lists the files that may still be in the bucket.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.files import temporary_beside, write_file, writing
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.local_paths import make_directory
from bert_jax.storage.cache import download, local_file
from bert_jax.storage.locations import open_location
from bert_jax.storage.objects import has_objects, stat
from bert_jax.storage.urls import ObjectUrl, parse_url

REMOTE_NAME = ".remote.json"
_THREADS = 8


@dataclass(frozen=True)
class RemoteFiles:
    """The files of a directory that may still be in a bucket.

    Attributes:
      directory: the directory on disk.
      url: the directory in the bucket; None if there is no such directory.
      sizes: a dict from relative file name to size in bytes.
      shared: whether fetched files are kept in the object cache, which other processes use too. If
        so, the directory contains links to files in the cache, so these must not be modified.
    """

    directory: Path
    url: ObjectUrl | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    shared: bool = False

    def size(self, name: str) -> int | None:
        """Return the size of a file that is only in the bucket, or None for any other file."""
        return None if (self.directory / name).exists() else self.sizes.get(name)

    def open(self, name: str) -> io.BufferedReader | io.FileIO:
        """Open a file on disk or, if it is missing, in the bucket.

        Raises:
          OSError: the file cannot be read.
        """
        if self.size(name) is None:
            return io.FileIO(self.directory / name)
        assert self.url is not None
        return io.BufferedReader(open_location(self.url / name))

    def removed(self) -> bool:
        """Return whether all of the directory's files in the bucket were removed."""
        return self.url is not None and not has_objects(self.url)

    def fetch(self, wanted: Callable[[str], bool] = lambda name: True) -> None:
        """Copy files that are still in the bucket to disk.

        Args:
          wanted: called with a file's relative name; returns whether the file is needed.

        Raises:
          StorageError: a file cannot be read.
          NotWritten: the copy cannot be written.
        """
        names = [name for name in self.sizes if wanted(name) and self.size(name) is not None]
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(self._fetch, names):
                pass

    def forget(self, wanted: Callable[[str], bool]) -> None:
        """Remove local copies of files; `fetch` can copy them again."""
        for name in self.sizes:
            if wanted(name):
                (self.directory / name).unlink(missing_ok=True)

    def _fetch(self, name: str) -> None:
        assert self.url is not None
        target = self.directory / name
        make_directory(target.parent)
        if self.shared:
            target.symlink_to(local_file(self.url / name))
            return
        with writing(target), temporary_beside(target) as temporary:
            download(stat(self.url / name), temporary)
            temporary.rename(target)


def leave_in_bucket(
    directory: Path, url: ObjectUrl, sizes: Mapping[str, int], *, shared: bool
) -> RemoteFiles:
    """Create the directories for files in a bucket, without the files; see `RemoteFiles`."""
    make_directory(directory)
    for name in sizes:
        make_directory((directory / name).parent)
    content = {"url": str(url), "sizes": dict(sizes), "shared": shared}
    write_file(directory / REMOTE_NAME, json.dumps(content))
    return RemoteFiles(directory, url, sizes, shared)


def remote_files(directory: Path) -> RemoteFiles:
    """Return the files of a directory that may still be in a bucket, if there are any."""
    file = directory / REMOTE_NAME
    if not file.is_file():
        return RemoteFiles(directory)
    with expecting_fields(file):
        content = read_json_object(file)
        sizes = {str(name): int(size) for name, size in content["sizes"].items()}
        return RemoteFiles(directory, parse_url(content["url"]), sizes, bool(content["shared"]))
