"""Read a run while another process writes it, on a disk or in a bucket."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bert_jax.local_paths import COPIES
from bert_jax.runs.bucket_layout import read_layout
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.ownership import RESOLVED_NAME, is_locked, only_writer
from bert_jax.runs.run_index import INDEX_NAME
from bert_jax.runs.staging import RunCopy, staging_directory
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, MODEL_NAME, TOKENIZER_NAME
from bert_jax.storage.errors import naming_store_errors, naming_url
from bert_jax.storage.objects import find
from bert_jax.storage.partial import remote_files
from bert_jax.storage.store import ABSENT
from bert_jax.storage.urls import ObjectUrl, parse_location


@dataclass
class FollowedRun:
    """A run that another process may still be writing to.

    For a run in a bucket, a local directory contains copies of the files that describe the model,
    and checkpoints whose arrays are fetched when they are loaded.

    Attributes:
      place: the work directory, to which this process writes only scores.
      copy: the copy of a run in a bucket; None for a run on disk.
    """

    place: WorkDir
    copy: RunCopy | None = None
    _seen: str = ABSENT  # the version of the run's index at the last update

    def refresh(self, *, fully: bool = False) -> None:
        """Update the checkpoints and the description of the model.

        For a run in a bucket, this makes a single request unless checkpoints were added or removed.

        Args:
          fully: whether to check all files for changes, even if no checkpoint was added or removed.

        Raises:
          ValueError: the index of the run is not an index.
          StorageError: the bucket cannot be read.
        """
        if self.copy is not None:
            assert isinstance(self.place.location, ObjectUrl)
            index = find(self.place.location / INDEX_NAME)
            if fully or index is None or index.version != self._seen:
                self.copy.update(read_layout(self.place.location))
                self._seen = ABSENT if index is None else index.version

    def release(self, step: int) -> None:
        """Remove a checkpoint's arrays from the local disk if they are copies."""
        if self.copy is not None:
            checkpoint = self.place.path / CHECKPOINTS_NAME / str(step)
            remote_files(checkpoint).forget(lambda name: "/" in name)


@contextmanager
def followed_run(location: str | os.PathLike[str]) -> Iterator[FollowedRun]:
    """Open a run for reading; messages in the block name its URL if it is in a bucket.

    Args:
      location: the run's work directory or its URL.

    Raises:
      ValueError: the bucket does not exist or cannot be accessed, or another process on this
        machine is following the run.
      StorageError: the bucket cannot be read.
    """
    place = parse_location(location)
    if not isinstance(place, ObjectUrl):
        yield FollowedRun(WorkDir.on_disk(place))
        return
    path = staging_directory(place, "follow")
    COPIES[str(path)] = str(place)
    if is_locked(path):
        raise ValueError(
            f"{place}: another process on this machine is scoring its checkpoints. Wait until it "
            "ends, or stop it."
        )
    with naming_url(path, place), only_writer(path):
        copy = RunCopy(path, shared=False, is_copied=_is_copied, removes_others=False)
        run = FollowedRun(WorkDir(place, path), copy)
        with naming_store_errors("", place):
            run.refresh()
        yield run
    if run.place.finished:
        shutil.rmtree(path.parent, ignore_errors=True)


def _is_copied(name: str) -> bool:
    return name in (MODEL_NAME, RESOLVED_NAME) or name.startswith(f"{TOKENIZER_NAME}/")
