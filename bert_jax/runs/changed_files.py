"""Copy the changed files and logs of a directory to a run in a bucket."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from bert_jax.local_paths import cache_directory
from bert_jax.runs.bucket_layout import DOWNSTREAM_NAME, Layout, parts_name
from bert_jax.runs.bucket_logs import LogParts
from bert_jax.runs.ownership import LOCK_NAME
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import MissingObjectError
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import remove, upload
from bert_jax.storage.partial import REMOTE_NAME
from bert_jax.storage.store import ABSENT, MAX_SINGLE_WRITE

# These files grow and can only be copied as a whole, so they are copied less often than others.
_LARGE = ("tensorboard", "profile", "curves.png")

Signature = tuple[int, int]  # The size and the modification time of a file.


class ChangedFiles:
    """The files of a directory that one process copies to a run in a bucket, except checkpoints.

    Args:
      directory: the directory, whose files are equal to those in the bucket.
      layout: the objects of the run.
      lease: the lease on these files.
      index: the index with the epoch of this process. The caller must claim it before copying.
      owns: returns whether this process writes a file, given its relative name. Other files are
        neither copied nor removed.
      logs: the names of the logs that this process writes; see `LogParts`.
    """

    def __init__(
        self,
        directory: Path,
        layout: Layout,
        lease: Lease,
        index: RunIndex,
        *,
        owns: Callable[[str], bool],
        logs: Sequence[str],
    ) -> None:
        self._directory, self._url, self._owns = directory, layout.url, owns
        self._index, self._check, self._writer = index, lease.check, ExclusiveWriter(lease)
        self._copied = dict(self.signatures())
        self._versions = {name: info.version for name, info in layout.files.items() if owns(name)}
        self._logs = {
            log: LogParts(layout.url / parts_name(log), layout.logs.get(log, ()), lease.check)
            for log in logs
        }
        self._lock = threading.Lock()  # held while files are copied

    def signatures(self) -> Iterator[tuple[str, Signature]]:
        """Yield the name and signature of each file that this process writes."""
        for path in files_below(self._directory, (CHECKPOINTS_NAME,)):
            name = path.relative_to(self._directory).as_posix()
            if self._owns(name):
                with suppress(FileNotFoundError):
                    status = path.stat()
                    yield name, (status.st_size, status.st_mtime_ns)

    def copy(self, *, everything: bool) -> None:
        """Copy the files that have changed, in the order in which they were written.

        Args:
          everything: whether to include growing files that can only be copied as a whole.

        Raises:
          StorageError: a file cannot be written.
        """
        with self._lock:
            files = dict(self.signatures())
            changed = [
                name
                for name, signature in sorted(files.items(), key=lambda item: item[1][1])
                if self._copied.get(name) != signature
                and (everything or name.partition("/")[0] not in _LARGE)
            ]
            for name in changed:
                if name not in self._logs:
                    self._copy_file(name, files[name])
            for name, parts in self._logs.items():
                if (self._directory / name).is_file():
                    parts.write((self._directory / name).read_bytes(), self._index.epoch)
            for name in self._copied.keys() - files.keys():
                if name in self._versions:
                    self._writer.remove(self._url / name, self._versions.pop(name))
                else:  # a checkpoint that was set aside
                    remove(self._url / name, check=self._check)
                del self._copied[name]

    def note_copied(self, names: Iterable[str]) -> None:
        """Record that the caller has copied files, so that `copy` does not copy them again."""
        files = dict(self.signatures())
        with self._lock:
            self._copied |= {name: files[name] for name in names if name in files}

    def _copy_file(self, name: str, signature: Signature) -> None:
        try:
            self._versions[name] = self._copy_growing(name)
        except MissingObjectError:
            raise
        except FileNotFoundError:  # The file has been removed since it was listed.
            return
        self._copied[name] = signature

    def _copy_growing(self, name: str) -> str:
        """Copy the current content of a file to which lines may be appended at any time."""
        source, target = self._directory / name, self._url / name
        with open(source, "rb") as file:
            content = file.read(MAX_SINGLE_WRITE + 1)
        if len(content) > MAX_SINGLE_WRITE:
            with tempfile.TemporaryDirectory(dir=cache_directory()) as directory:
                copy = Path(directory) / source.name
                shutil.copyfile(source, copy)
                return upload(copy, target, check=self._check)
        return self._writer.write(target, content, self._versions.get(name, ABSENT))


def files_below(directory: Path, skipped: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the files in a directory tree that belong to a run."""
    for parent, directories, names in os.walk(directory):
        if Path(parent) == directory:
            directories[:] = [name for name in directories if name not in skipped]
        if Path(parent).parent.parent == directory / DOWNSTREAM_NAME:
            # Unfinished fine-tuning runs are not copied; another machine starts them again.
            directories.clear()
            continue
        for name in names:
            if name not in (LOCK_NAME, REMOTE_NAME) and not name.endswith(".tmp"):
                yield Path(parent) / name
