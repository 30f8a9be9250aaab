"""Copy the files of a run to a bucket while the run trains.

A thread copies small files every ten seconds, and everything else when a checkpoint is complete.
The order of these copies ensures that the run can be resumed from the bucket, even if it is killed
at any time. A checkpoint is added to the index only after all its files and all other files have
been copied. After that, older checkpoints are removed.

If a process writes something after another one has taken over, the run is not affected. For
checkpoints, see `run_index`; for logs, see `bucket_logs`; and for other files, see
`storage.exclusive_writes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bert_jax.goodput.entries import GOODPUT_NAME
from bert_jax.runs.background_copies import BackgroundCopies
from bert_jax.runs.bucket_layout import Layout, is_score
from bert_jax.runs.changed_files import ChangedFiles, files_below
from bert_jax.runs.checkpoint_parts import PartCollector, upload_all
from bert_jax.runs.run_index import RunIndex
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import MissingObjectError
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import list_objects, remove_all
from bert_jax.storage.partial import remote_files
from bert_jax.training.agreement import ProcessMessages
from bert_jax.training.checkpoint_files import ASIDE_NAME, steps_in
from bert_jax.training.metrics_log import LOG_NAME


class Uploads(BackgroundCopies):
    """Copies the files in a staging directory to a run in a bucket; see `Mirror`.

    Args:
      staging: the staging directory, which is equal to the run in the bucket.
      layout: the objects of the run.
      lease: the lease on the run.
      index: the index of the run, which has been opened.
      messages: messages to and from the other processes of the run; None if there are none.
    """

    def __init__(
        self,
        staging: Path,
        layout: Layout,
        lease: Lease,
        index: RunIndex,
        messages: ProcessMessages | None = None,
    ) -> None:
        super().__init__(layout.url, messages)
        self._staging, self._index = staging, index
        self._check = lease.check
        self._files = ChangedFiles(
            staging,
            layout,
            lease,
            index,
            owns=lambda name: not is_score(name),  # see `bucket_scores`
            logs=(LOG_NAME, GOODPUT_NAME),
        )
        self._unfinished = [info.url for info in layout.unfinished]
        self._parts = None if messages is None else PartCollector(staging, layout.url, messages)

    def _complete_steps(self) -> Iterable[int]:
        return self._index.checkpoints

    def copy_rest(self) -> None:
        """Copy what has changed since the end of the `with` block of `running`, except checkpoints.

        Raises:
          StorageError: a file cannot be copied.
        """
        self._index.claim()
        self._files.copy(everything=True)

    def remove_checkpoints(self) -> None:
        """Remove all checkpoints from the bucket.

        Raises:
          StorageError: an object cannot be removed.
        """
        self._index.claim()
        self._remove_unfinished()
        self._remove_checkpoints(list(self._index.checkpoints))

    def _copy(self, steps: Sequence[int], *, closing: bool) -> None:
        self._index.claim()
        copied = {step: self._copy_checkpoint(step) for step in steps}
        self._copy_others(everything=bool(steps) or closing)
        for step, directory in copied.items():
            self._index.add(step, directory)
            if self._parts is not None:
                self._parts.completed(step, directory)
        if steps:
            self._remove_old_checkpoints()
        if closing and self._parts is not None:
            self._parts.close()

    def _copy_checkpoint(self, step: int) -> str:
        """Copy a checkpoint's files, and return the name of the directory to add to the index."""
        self._remove_checkpoints([step])  # the state that a rollback has discarded
        directory = self._index.new_directory(step)
        source = self._staging / CHECKPOINTS_NAME / str(step)
        target = self._url / CHECKPOINTS_NAME / directory
        names = [path.relative_to(source).as_posix() for path in files_below(source)]
        if self._parts is not None:
            self._parts.copy(step, directory, names, self._check)
        else:
            upload_all([(source / name, target / name) for name in names], self._check)
        return directory

    def _copy_others(self, *, everything: bool) -> None:
        """Copy all other files that have changed, in the order in which they were written."""
        self._remove_unfinished()
        self._set_aside(steps_in(self._staging / CHECKPOINTS_NAME))
        self._files.copy(everything=everything)

    def _set_aside(self, steps: list[int]) -> None:
        """Set aside checkpoints in the bucket that the run has set aside in the staging directory.

        This comes before all other changes, as it does in a work directory on disk.
        """
        aside = [path for path in (self._staging / ASIDE_NAME).glob("*") if path.is_dir()]
        numbers = {path.name.partition(".")[0] for path in aside}
        newer = [
            step
            for step in self._index.checkpoints
            if str(step) in numbers and (not steps or step > steps[-1])
        ]
        if not newer:
            return
        for directory in aside:
            with suppress(MissingObjectError):  # A damaged checkpoint may lack files.
                remote_files(directory).fetch()
        files = [name for name, _ in self._files.signatures()]
        moved = [
            name for name in files if name.startswith(f"{ASIDE_NAME}/") and name.count("/") > 1
        ]
        upload_all([(self._staging / name, self._url / name) for name in moved], self._check)
        self._files.note_copied(moved)
        self._remove_checkpoints(newer)

    def _remove_old_checkpoints(self) -> None:
        kept = steps_in(self._staging / CHECKPOINTS_NAME)
        if kept:
            self._remove_checkpoints(self._index.checkpoints.keys() - set(kept))

    def _remove_checkpoints(self, steps: Iterable[int]) -> None:
        """Remove checkpoints from the bucket, beginning with their entries in the index."""
        names = {step: name for step, name in self._index.checkpoints.items() if step in set(steps)}
        if names:
            self._index.remove(names)
        for name in names.values():
            files = list_objects(self._url / CHECKPOINTS_NAME / name)
            remove_all([info.url for info in files], check=self._check)

    def _remove_unfinished(self) -> None:
        """Remove checkpoints that an earlier process did not finish writing or removing."""
        remove_all(self._unfinished, check=self._check)
        self._unfinished = []
