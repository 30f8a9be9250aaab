"""Write the scores of a run's fine-tuned checkpoints, on a disk or in a bucket.

In a bucket, the scores have a lease and an index (see `run_index`) of their own, in `downstream`.
They are written by the process that has this lease, which is either the run itself or another
process that follows it. The run never changes them without the lease.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.runs.bucket_layout import (
    DOWNSTREAM_NAME,
    LEASE_NAME,
    Layout,
    is_score,
    parts_name,
    read_layout,
)
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.changed_files import ChangedFiles
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.ownership import only_writer
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.staging import copy_objects
from bert_jax.storage.errors import naming_store_errors
from bert_jax.storage.lease import Lease
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.downstream_log import DOWNSTREAM_LOG_NAME
from bert_jax.training.metrics_log import LOG_NAME
from bert_jax.training.reporting import CURVES_NAME, TENSORBOARD_NAME

_HOLDER = "process that scores checkpoints"


@dataclass(frozen=True)
class Scores:
    """The scores that this process may write in the work directory of a run.

    Attributes:
      path: the local directory with the scores.
      log: the parts of the run's log if another process writes the run to a bucket; None otherwise.
      files: copies the scores to a bucket; None for a run on disk.
      index: the index with the epoch of this process; None for a run on disk.
    """

    path: Path
    log: ObjectUrl | None = None
    files: ChangedFiles | None = None
    index: RunIndex | None = None

    def update_log(self) -> None:
        """Copy the run's log from the bucket; the scores are plotted next to its curves.

        Raises:
          StorageError: the log cannot be read.
        """
        if self.log is not None and (content := read_log(self.log)):
            write_file(self.path / LOG_NAME, content)

    def publish(self) -> None:
        """Copy the scores to the bucket.

        Raises:
          StorageError: a file cannot be written.
          LeaseLostError: another process has taken over the scores.
        """
        if self.files is not None and self.index is not None:
            self.index.claim()
            self.files.copy(everything=True)


@contextmanager
def open_scores(place: WorkDir) -> Iterator[Scores]:
    """Reserve the scores of a run's checkpoints for this process.

    Args:
      place: the work directory of the run, which another process may be writing.

    Raises:
      ValueError: another process is scoring this run's checkpoints.
      StorageError: the bucket cannot be read or written.
    """
    url = place.location
    if not isinstance(url, ObjectUrl):
        with only_writer(place.path / DOWNSTREAM_NAME):
            yield Scores(place.path)
        return
    follows = place.lease is None

    def is_ours(name: str) -> bool:
        return is_score(name) or (follows and name == CURVES_NAME)

    with ExitStack() as closing:
        with naming_store_errors("", url):
            lease = Lease(url / DOWNSTREAM_NAME / LEASE_NAME, _HOLDER, str(url), place.lease)
            closing.enter_context(lease)
            index = RunIndex(url / DOWNSTREAM_NAME, lease)
            index.open({})
            layout = _copy_scores(url, place.path)
        closing.enter_context(only_writer(place.path / DOWNSTREAM_NAME))
        logs = (DOWNSTREAM_LOG_NAME,)
        files = ChangedFiles(place.path, layout, lease, index, owns=is_ours, logs=logs)
        log = url / parts_name(LOG_NAME) if follows else None
        yield Scores(place.path, log, files, index)


def _copy_scores(url: ObjectUrl, directory: Path) -> Layout:
    """Copy the scores in a bucket to a directory, which may contain older ones."""
    layout = read_layout(url)
    log = directory / DOWNSTREAM_LOG_NAME
    objects = {
        directory / name: [info]
        for name, info in layout.files.items()
        if is_score(name) and name.partition("/")[0] != TENSORBOARD_NAME
    }
    if parts := layout.logs.get(DOWNSTREAM_LOG_NAME):
        # A run that was copied from a disk may also have the log as one object, which is outdated.
        objects[log] = parts
    elif log not in objects:
        log.unlink(missing_ok=True)
    copy_objects(objects, logs=[log] if parts else [])
    return layout
