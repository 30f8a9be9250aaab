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
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from bert_jax.files import temporary_beside, writing
from bert_jax.local_paths import cache_directory, make_directory
from bert_jax.storage.errors import ConflictError, MissingObjectError
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.locations import copy_object, copy_version
from bert_jax.storage.objects import find, list_objects, remove
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl, parse_location

# A list of the objects in a bucket is reused for this many seconds, or for this many times the
# duration of listing, whichever is longer. With very many objects, listing takes minutes.
_LIST_SECONDS, _LIST_FACTOR = 5.0, 20
_COPIES = 16  # This many objects are copied at the same time.
RESULT_SUFFIX, SHARD_SUFFIX = ".json", ".arrayrecord"


class SharedFiles(Protocol):
    """The files in the directory for unfinished work, and files from other machines."""

    @property
    def work(self) -> Path:
        """The directory on this machine."""

    def names(self, directory: str) -> list[str]:
        """Return the sorted names, relative to `work`, of the files of all machines in a directory.

        Args:
          directory: the name of the directory relative to `work`.
        """

    def fetch(self, *names: str) -> None:
        """Copy finished files from other machines to this machine, if the first file exists.

        Args:
          names: the files, beginning with the one that marks the others as finished.
        """

    def fetch_all(self, directory: str) -> None:
        """Copy all files in a directory that other machines have and this machine lacks.

        A file that another machine is just replacing may be left out; `fetch` copies it later.
        """

    def share(self, *names: str) -> None:
        """Make files available to other machines, in reverse order; see `fetch`.

        This may be called in several threads.
        """

    def remove(self, name: str) -> None:
        """Remove a file from this machine and, if there is a bucket, from the bucket."""

    def forget(self) -> None:
        """Forget which files other machines have finished; the next `fetch` looks them up again."""

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

    def fetch_all(self, directory: str) -> None:
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
    """Files that several machines exchange through a bucket; see `SharedFiles`."""

    def __init__(self, work: Path, remote: ObjectUrl, writer: ExclusiveWriter):
        """Create the object without reading any files.

        Args:
          work: the directory on this machine.
          remote: the URL of the directory for unfinished work, OUTPUT/.work.
          writer: writes objects on behalf of the holder of the lease.
        """
        self._work, self._remote, self._writer = work, remote, writer
        # A dict from a directory to the time when its objects may be listed again, and their names.
        self._listed: dict[str, tuple[float, frozenset[str]]] = {}

    @property
    def work(self) -> Path:
        """See `SharedFiles`."""
        return self._work

    def names(self, directory: str) -> list[str]:
        """See `SharedFiles`."""
        return sorted(self._list(directory))

    def _list(self, directory: str) -> dict[str, ObjectInfo]:
        """Return the objects in a directory, keyed by their names relative to `work`."""
        began = time.monotonic()
        infos = list_objects(self._remote / directory)
        objects = {self._remote.relative(info.url): info for info in infos}
        ended = time.monotonic()
        again = ended + max(_LIST_SECONDS, _LIST_FACTOR * (ended - began))
        self._listed[directory] = again, frozenset(objects)
        return objects

    def _names_listed(self, directory: str) -> frozenset[str]:
        return self._listed.get(directory, (0.0, frozenset()))[1]

    def fetch(self, *names: str) -> None:
        """Copy finished files; see `SharedFiles`. A list of objects is reused for at least 5 s."""
        directory = names[0].rpartition("/")[0]
        if names[0] not in self._names_listed(directory):
            again, _ = self._listed.get(directory, (0.0, None))
            if time.monotonic() >= again:
                self._list(directory)
        if names[0] not in self._names_listed(directory):
            return
        for name in reversed(names):
            if find(self._remote / name) is not None:
                target = self._work / name
                make_directory(target.parent)
                copy_object(self._remote / name, target)

    def fetch_all(self, directory: str) -> None:
        """See `SharedFiles`."""
        make_directory(self._work / directory)

        def copy(name: str, info: ObjectInfo) -> None:
            with suppress(ConflictError, MissingObjectError):
                copy_version(info, self._work / name)

        objects = self._list(directory)
        missing = {name: info for name, info in objects.items() if not (self._work / name).exists()}
        with ThreadPoolExecutor(_COPIES, thread_name_prefix="fetch") as threads:
            deque(threads.map(copy, missing.keys(), missing.values()), maxlen=0)

    def share(self, *names: str) -> None:
        """See `SharedFiles`."""
        if names[0] in self._names_listed(names[0].rpartition("/")[0]):
            # Until this object is removed, it marks the old content of these files as finished.
            remove(self._remote / names[0], check=self._writer.check)
        for name in reversed(names):
            if (self._work / name).is_file():
                self._writer.upload(self._work / name, self._remote / name)

    def remove(self, name: str) -> None:
        """See `SharedFiles`."""
        (self._work / name).unlink(missing_ok=True)
        remove(self._remote / name, check=self._writer.check)

    def forget(self) -> None:
        """See `SharedFiles`."""
        self._listed.clear()

    def keep_shard(self, name: str) -> None:
        """Keep a shard; see `SharedFiles`. The files on this machine are removed."""
        marked = find(self._remote / f"{name}{RESULT_SUFFIX}") is not None
        upload_shard(self._work, name, self._remote, self._writer, marked=marked)


def upload_shard(
    work: Path, name: str, remote: ObjectUrl, writer: ExclusiveWriter, *, marked: bool
) -> None:
    """Upload the shard of a unit to the corpus, and then its result, and remove both files.

    Args:
      work: the directory that contains the files.
      name: the name of the unit.
      remote: the URL of the directory for unfinished work.
      writer: writes objects on behalf of the holder of the lease.
      marked: whether the bucket already has a result of this unit, which describes an earlier shard
        and is therefore removed first.

    Raises:
      StorageError: an object cannot be written.
    """
    shard, result = work / f"{name}{SHARD_SUFFIX}", work / f"{name}{RESULT_SUFFIX}"
    if marked:
        remove(remote / result.name, check=writer.check)
    writer.upload(shard, remote.parent / shard.name)
    writer.upload(result, remote / result.name)
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
      run: an identifier of this run of the command, which prevents worker processes from using the
        files of an earlier run.
    """

    work: str
    run: str

    def files(self) -> SharedFiles:
        """Return the `SharedFiles` of this process for this place, creating them at the first call.

        If the place is a URL, the local files are in a directory that only this process uses.
        """
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
    return BucketFiles(work, location, ExclusiveWriter(None))
