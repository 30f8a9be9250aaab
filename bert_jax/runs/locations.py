"""Open the work directory of a run for writing, on a disk or in a bucket.

A run in a bucket works in a local staging directory, from which its files are copied to the bucket.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import jax

from bert_jax.runs.bucket_layout import LEASE_NAME, check_unclaimed, read_layout
from bert_jax.runs.outputs import check_work_dir_kind
from bert_jax.runs.ownership import is_locked
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.staging import copy_to_continue, staging_directory
from bert_jax.runs.uploads import Uploads
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import naming_store_errors, naming_url
from bert_jax.storage.lease import Lease
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.training.reports import Message, OnReport, Report


@dataclass
class WorkDir:
    """A work directory that has been opened for a run to write to.

    Attributes:
      location: the directory or URL in the config.
      path: the local directory in which the run keeps its files.
      uploads: the object that copies the files to a bucket; None if they are not copied.
      lease: the lease of a run in a bucket; None if this process does not write the run.
      finished: whether the staging directory of a run in a bucket is no longer needed.
    """

    location: Location
    path: Path
    uploads: Uploads | None = None
    lease: Lease | None = None
    finished: bool = False

    @staticmethod
    def on_disk(path: str | os.PathLike[str]) -> WorkDir:
        """Return a work directory on disk."""
        return WorkDir(Path(path), Path(path))

    def __truediv__(self, name: str) -> WorkDir:
        """Return a directory in this one, whose files are not copied to a bucket."""
        return WorkDir(self.location / name, self.path / name)

    def shown(self, file: Path) -> Location:
        """Return a file's path or, for a run in a bucket, its URL."""
        return self.location / file.relative_to(self.path).as_posix()

    def uploading(self) -> AbstractContextManager[None]:
        """Copy files to the bucket during a `with` block, and all remaining changes at its end."""
        return nullcontext() if self.uploads is None else self.uploads.running()

    def settle(self) -> None:
        """Copy changed files to the bucket, before the run has saved its first checkpoint."""
        if self.uploads is not None:
            self.uploads.settle()

    def reporting(self, on_report: OnReport | None) -> OnReport | None:
        """Return a callback whose messages name the run's URL instead of its staging directory."""
        if on_report is None or self.location == self.path:
            return on_report

        def report(each: Report) -> None:
            if isinstance(each, Message):
                each = Message(each.text.replace(str(self.path), str(self.location)))
            on_report(each)

        return report


@contextmanager
def open_work_dir(location: str | os.PathLike[str]) -> Iterator[WorkDir]:
    """Reserve a work directory in a bucket for this process; a directory on disk is only checked.

    A run in a bucket is copied to its staging directory first. When the `with` block ends, the
    lease is released and, if the run is finished, the staging directory is removed.

    Args:
      location: the path or URL in the config.

    Raises:
      ValueError: another process is using the directory, or it belongs to something else.
      StorageError: the bucket cannot be read or written.
    """
    place = parse_location(location, "work_dir")
    if not isinstance(place, ObjectUrl):
        check_work_dir_kind(place)
        yield WorkDir.on_disk(place)
        return
    if jax.process_count() > 1:
        raise ValueError(
            f"work_dir={place}: a run with {jax.process_count()} processes cannot write to a "
            "bucket. Use one process, or a directory on a file system that all processes share."
        )
    setting = f"work_dir={place}"
    with ExitStack() as closing:
        with naming_store_errors("work_dir", place):
            check_unclaimed(read_layout(place), setting)
            lease = closing.enter_context(Lease(place / LEASE_NAME, "run", setting))
            index = RunIndex(place, lease)
        staging = staging_directory(place)
        if is_locked(staging):
            raise ValueError(f"{setting}: another run on this machine is using {staging}. Stop it.")
        with naming_store_errors("work_dir", place):
            index.open({step: str(step) for step in read_layout(place).checkpoints})
            layout = read_layout(place)
            copy_to_continue(layout, staging)
            opened = WorkDir(place, staging, Uploads(staging, layout, lease, index), lease)
        with naming_url(staging, place):
            check_work_dir_kind(staging)
            yield opened
        if opened.finished:
            shutil.rmtree(staging.parent, ignore_errors=True)


@contextmanager
def open_part(url: ObjectUrl, staging: Path, whole: Lease) -> Iterator[WorkDir]:
    """Open a run in a bucket that is a part of something for which this process has a lease.

    When the block ends, all changes are in the bucket, and the staging directory contains no arrays
    of checkpoints.

    Args:
      url: the run's URL.
      staging: the local directory for the run.
      whole: the lease.

    Raises:
      ValueError: another process is writing to the run.
      StorageError: the bucket cannot be read or written.
    """
    with Lease(url / LEASE_NAME, "run", f"work_dir={url}", whole) as lease:
        index = RunIndex(url, lease)
        index.open({step: str(step) for step in read_layout(url).checkpoints})
        layout = read_layout(url)
        copy_to_continue(layout, staging)
        uploads = Uploads(staging, layout, lease, index)
        yield WorkDir(url, staging, uploads, lease)
        uploads.copy_rest()
        shutil.rmtree(staging / CHECKPOINTS_NAME, ignore_errors=True)
        copy_to_continue(read_layout(url), staging)
