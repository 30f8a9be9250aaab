"""Exchange the files of an unfinished preparation between the machines that work on it.

On a file system, all machines see the same directory. In a bucket, each machine has its own
directory, and uploads the files that it has finished. Files are written whole, and their content
does not depend on the machine that writes them.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from bert_jax.files import temporary_beside, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.storage.locations import copy_object
from bert_jax.storage.objects import find, list_objects, remove, upload, write_bytes
from bert_jax.storage.urls import ObjectUrl, parse_location

# How long a list of the objects in a bucket may be reused.
_LIST_SECONDS = 5.0
RESULT_SUFFIX, SHARD_SUFFIX = ".json", ".arrayrecord"


class SharedFiles(Protocol):
    """The files in the directory for unfinished work, and those of other machines."""

    @property
    def work(self) -> Path:
        """The directory on this machine."""

    def names(self, directory: str) -> list[str]:
        """Return the sorted names, relative to `work`, of the files of all machines in a directory.

        Args:
          directory: the name of the directory relative to `work`.
        """

    def fetch(self, *names: str) -> None:
        """Copy finished files of other machines to this one, if the first of these files exists.

        Args:
          names: the files, beginning with the one that marks the others as finished.
        """

    def share(self, *names: str) -> None:
        """Make files available to other machines, in reverse order; see `fetch`."""

    def remove(self, name: str) -> None:
        """Remove a file on this machine and, in a bucket, the file for other machines."""

    def forget(self) -> None:
        """Forget which files other machines have finished, so that this is looked up again."""

    def keep_shard(self, name: str) -> None:
        """Keep the shard of a unit and its result, which are in `work`."""


class SameDirectory:
    """The files of machines that share a directory, so that nothing has to be copied."""

    def __init__(self, work: Path):
        self._work = work

    @property
    def work(self) -> Path:
        """See `SharedFiles`."""
        return self._work

    def names(self, directory: str) -> list[str]:
        """See `SharedFiles`."""
        folder = self._work / directory
        names = (path.name for path in folder.iterdir()) if folder.is_dir() else ()
        return sorted(f"{directory}/{name}" for name in names)

    def fetch(self, *names: str) -> None:
        """Do nothing."""

    def share(self, *names: str) -> None:
        """Do nothing."""

    def remove(self, name: str) -> None:
        """See `SharedFiles`."""
        (self._work / name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Do nothing."""

    def keep_shard(self, name: str) -> None:
        """Do nothing."""


class BucketFiles:
    """The files of machines that share a URL; see `SharedFiles`."""

    def __init__(self, work: Path, remote: ObjectUrl, check: Callable[[], None] = lambda: None):
        """Describe the files without reading any.

        Args:
          work: the directory on this machine.
          remote: the URL of the directory for unfinished work, OUTPUT/.work.
          check: called before every upload; raises an error if this process may no longer write.
        """
        self._work, self._remote, self._check = work, remote, check
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}

    @property
    def work(self) -> Path:
        """See `SharedFiles`."""
        return self._work

    def names(self, directory: str) -> list[str]:
        """See `SharedFiles`."""
        infos = list_objects(self._remote / directory)
        return sorted(self._remote.relative(info.url) for info in infos)

    def fetch(self, *names: str) -> None:
        """See `SharedFiles`. A list of the objects is used for up to five seconds."""
        directory = names[0].rpartition("/")[0]
        listed_at, listed = self._listed.get(directory, (0.0, frozenset()))
        if names[0] not in listed and time.monotonic() - listed_at > _LIST_SECONDS:
            listed = frozenset(self.names(directory))
            self._listed[directory] = time.monotonic(), listed
        if names[0] not in listed:
            return
        for name in reversed(names):
            if find(self._remote / name) is not None:
                target = self._work / name
                make_directory(target.parent)
                copy_object(self._remote / name, target)

    def share(self, *names: str) -> None:
        """See `SharedFiles`."""
        self._check()
        for name in reversed(names):
            if (self._work / name).is_file():
                upload(self._work / name, self._remote / name)

    def remove(self, name: str) -> None:
        """See `SharedFiles`."""
        (self._work / name).unlink(missing_ok=True)
        remove(self._remote / name)

    def forget(self) -> None:
        """See `SharedFiles`."""
        self._listed.clear()

    def keep_shard(self, name: str) -> None:
        """See `SharedFiles`. The files on this machine are removed."""
        self._check()
        marked = find(self._remote / f"{name}{RESULT_SUFFIX}") is not None
        upload_shard(self._work, name, self._remote, marked=marked)


def upload_shard(work: Path, name: str, remote: ObjectUrl, *, marked: bool) -> None:
    """Upload the shard of a unit to the corpus, and then its result, and remove both files.

    Args:
      work: the directory that contains the files.
      name: the name of the unit.
      remote: the URL of the directory for unfinished work.
      marked: whether there is already a result, which describes an earlier shard.

    Raises:
      StorageError: an object cannot be written.
    """
    shard, result = work / f"{name}{SHARD_SUFFIX}", work / f"{name}{RESULT_SUFFIX}"
    if marked:
        remove(remote / result.name)
    upload(shard, remote.parent / shard.name)
    write_bytes(remote / result.name, result.read_bytes())
    shard.unlink()
    result.unlink()


def files_below(work: Path, directory: str) -> list[str]:
    """Return the sorted names of all files in a directory tree, relative to `work`."""
    files = (path for path in (work / directory).rglob("*") if path.is_file())
    return sorted(path.relative_to(work).as_posix() for path in files)


@dataclass(frozen=True)
class WorkPlace:
    """A directory for unfinished work, in the form that is passed to the workers of a pipeline.

    Attributes:
      work: the absolute path or the URL of the directory.
      run: identifies the run of the command, so that a worker process does not use the files of an
        earlier one.
    """

    work: str
    run: str

    def files(self) -> SharedFiles:
        """Return the files of this worker process; a process uses one local directory for a URL."""
        return _files_of_process(self, os.getpid())


@lru_cache(maxsize=4)
def _files_of_process(place: WorkPlace, process: int) -> SharedFiles:
    location = parse_location(place.work)
    if not isinstance(location, ObjectUrl):
        return SameDirectory(location)
    name = hashlib.sha256(place.work.encode()).hexdigest()[:16]
    local = cache_directory() / "workers" / name
    with writing(local):
        make_directory(local.parent)
        # If a process is killed, the next process removes its directory.
        stack = ExitStack()
        work = stack.enter_context(temporary_beside(local, directory=True))
    atexit.register(stack.close)
    return BucketFiles(work, location)
