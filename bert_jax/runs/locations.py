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
from bert_jax.runs.checkpoint_parts import PartUploads
from bert_jax.runs.outputs import check_work_dir_kind
from bert_jax.runs.ownership import is_locked, only_writer
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.staging import copy_to_continue, staging_directory
from bert_jax.runs.uploads import Uploads
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import naming_store_errors, naming_url
from bert_jax.storage.lease import Lease
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.training.agreement import ProcessMessages, on_all_processes
from bert_jax.training.distributed import StopRequest, check_same
from bert_jax.training.reports import Message, OnReport, Report


@dataclass
class WorkDir:
    """A work directory that has been opened for a run to write to.

    Attributes:
      location: the directory or URL in the config.
      path: the local directory in which the run keeps its files.
      uploads: the object that copies this process's files to a bucket; None if they are not
        copied.
      lease: the lease of a run in a bucket; None if this process does not write the run.
      finished: whether the staging directory of a run in a bucket is no longer needed.
    """

    location: Location
    path: Path
    uploads: Uploads | PartUploads | None = None
    lease: Lease | None = None
    finished: bool = False

    @staticmethod
    def on_disk(path: str | os.PathLike[str]) -> WorkDir:
        """Return a work directory on disk."""
        return WorkDir(Path(path), Path(path))

    def __truediv__(self, name: str) -> WorkDir:
        """Return a subdirectory whose files are not copied to a bucket."""
        return WorkDir(self.location / name, self.path / name)

    def shown(self, file: Path) -> Location:
        """Return a file's path or, for a run in a bucket, its URL."""
        return self.location / file.relative_to(self.path).as_posix()

    def uploading(self, stop: StopRequest | None = None) -> AbstractContextManager[None]:
        """Copy files to the bucket during a `with` block, and all remaining changes at its end.

        Args:
          stop: a request to stop the run; see `BackgroundCopies.running`.
        """
        return nullcontext() if self.uploads is None else self.uploads.running(stop)

    def settle(self, step: int | None = None) -> None:
        """Copy changed files to the bucket, before the run has saved its first checkpoint.

        Processes with their own directories receive these changes too. All processes must call this
        together.

        Args:
          step: the step of the checkpoint that the run resumes from; None if there is none.
        """
        if self.uploads is None:
            return
        on_all_processes(self._upload_changes)
        on_all_processes(lambda: self._download_changes(step))

    def _upload_changes(self) -> None:
        if isinstance(self.uploads, Uploads):
            self.uploads.settle()

    def _download_changes(self, step: int | None) -> None:
        if isinstance(self.uploads, PartUploads):
            self.uploads.synchronize(step)

    def remove_copied_checkpoints(self) -> None:
        """Remove all of the run's checkpoints from its bucket, but not from the local directory.

        Raises:
          StorageError: an object cannot be removed.
        """
        if isinstance(self.uploads, Uploads):
            self.uploads.remove_checkpoints()

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
    """Reserve a work directory in a bucket for this run, or check a directory on disk.

    A run in a bucket is copied to the staging directory of each process first. When the `with`
    block ends, the lease is released and, if the run is finished, the staging directories are
    removed. All processes of a run must call this together.

    Args:
      location: the path or URL in the config.

    Raises:
      ValueError: another run is using the directory, or it belongs to something else.
      StorageError: the bucket cannot be read or written.
    """
    place = parse_location(location, "work_dir")
    if not isinstance(place, ObjectUrl):
        check_work_dir_kind(place)
        yield WorkDir.on_disk(place)
        return
    if jax.process_count() > 1:
        check_same({"work_dir": str(place)})
    with ExitStack() as closing:
        lease = on_all_processes(lambda: _lease(place, closing))
        messages = ProcessMessages() if jax.process_count() > 1 else None
        opened = on_all_processes(lambda: _opened(place, lease, messages, closing))
        with naming_url(opened.path, place):
            yield opened
        if opened.finished:
            shutil.rmtree(opened.path.parent, ignore_errors=True)


def _lease(url: ObjectUrl, closing: ExitStack) -> Lease | None:
    """Take the run's lease on the first process; return None on the others."""
    if jax.process_index() != 0:
        return None
    setting = f"work_dir={url}"
    with naming_store_errors("work_dir", url):
        check_unclaimed(read_layout(url), setting)
        return closing.enter_context(Lease(url / LEASE_NAME, "run", setting))


def _opened(
    url: ObjectUrl, lease: Lease | None, messages: ProcessMessages | None, closing: ExitStack
) -> WorkDir:
    """Copy a run to this process's staging directory."""
    process = jax.process_index()
    staging = staging_directory(url, f"process {process} of " if process else "")
    if is_locked(staging):
        raise ValueError(
            f"work_dir={url}: another run on this machine is using {staging}. Stop it."
        )
    if lease is None:  # The first process locks its directory later.
        closing.enter_context(only_writer(staging))
    with naming_store_errors("work_dir", url):
        if lease is not None:
            index = RunIndex(url, lease)
            index.open({step: str(step) for step in read_layout(url).checkpoints})
        layout = read_layout(url)
        copy_to_continue(layout, staging)
        uploads: Uploads | PartUploads
        if lease is not None:
            uploads = Uploads(staging, layout, lease, index, messages)
        else:
            assert messages is not None, "there are several processes"
            uploads = PartUploads(staging, layout, messages)
    with naming_url(staging, url):
        check_work_dir_kind(staging)
    return WorkDir(url, staging, uploads, lease)


@contextmanager
def open_part(url: ObjectUrl, staging: Path, whole: Lease) -> Iterator[WorkDir]:
    """Open a run in a bucket under a broader lease that covers it, such as the lease on a sweep.

    When the block ends, all changes are in the bucket, and the staging directory contains no arrays
    of checkpoints.

    Args:
      url: the run's URL.
      staging: the local directory for the run.
      whole: the broader lease, which this process holds.

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
