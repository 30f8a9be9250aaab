"""Copy a checkpoint to a bucket if several processes have its parts on their own disks.

Each process copies its own arrays. It also copies its index of these arrays to `.parts`. From these
indexes, the first process creates the index of the whole checkpoint. It then removes the objects in
`.parts` and adds the checkpoint to the index of the run. Until then, the checkpoint is ignored, and
if a process is killed, the next start of the run removes it. Afterward, the arrays remain only in
the bucket. If a process needs arrays again, it copies the whole checkpoint from there.

The first process chooses a new directory for each checkpoint. If another run takes over while the
processes are suspended, they may later write to this directory, but nothing refers to it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax

from bert_jax.files import write_file
from bert_jax.runs.background_copies import BackgroundCopies
from bert_jax.runs.bucket_layout import Layout, parts_name, read_layout
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.staging import copy_objects, copy_to_continue, leave_checkpoint
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.objects import list_objects, remove_all, upload
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.agreement import ProcessMessages
from bert_jax.training.checkpoint_files import require_intact
from bert_jax.training.divided_checkpoints import combine, index_of, values_of
from bert_jax.training.metrics_log import LOG_NAME

_PARTS = ".parts"
_CLOSED = "closed"
_THREADS = 4


class PartCollector:
    """Copies checkpoints on the first process; `PartUploads` does so on the other processes.

    Args:
      staging: this process's staging directory.
      url: the run's URL.
      messages: messages to and from the other processes.
    """

    def __init__(self, staging: Path, url: ObjectUrl, messages: ProcessMessages) -> None:
        self._staging, self._url, self._messages = staging, url, messages
        self._numbers = itertools.count()
        self._number = -1  # the number of the checkpoint that is being copied

    def copy(
        self, step: int, directory: str, names: Sequence[str], check: Callable[[], None]
    ) -> None:
        """Copy a checkpoint to a directory that is not yet in the index of the run.

        Args:
          step: the checkpoint's step.
          directory: the name of the directory, which must not exist.
          names: the relative names of this process's files.
          check: called before every change to the bucket.

        Raises:
          FailedElsewhere: another process cannot copy its part.
          IncompleteCheckpoint: the parts are not the whole checkpoint.
          StorageError: an object cannot be read or written.
        """
        number = self._number = next(self._numbers)
        others = range(1, jax.process_count())
        source = self._staging / CHECKPOINTS_NAME / str(step)
        target = self._url / CHECKPOINTS_NAME / directory
        self._messages.send(_key(number, "begin"), directory)
        replaced = index_of(source)
        own = [name for name in names if name not in replaced]
        upload_all([(source / name, target / name) for name in own], check)
        self._messages.wait_for([_key(number, f"begun-{each}") for each in others], begun=False)
        # All processes have received the messages about the previous checkpoint. Every process
        # polls all messages, so their number must not grow.
        self._messages.remove(_group(number - 1))
        self._messages.wait_for([_key(number, f"copied-{each}") for each in others], begun=True)
        with tempfile.TemporaryDirectory(dir=self._staging.parent) as temporary:
            copies = Path(temporary)
            parts = target / _PARTS
            infos = list(list_objects(parts))
            copy_objects({copies / parts.relative(info.url): [info] for info in infos})
            output = copies / "combined"
            combined = combine([source, *(copies / str(each) for each in others)], output)
            upload_all([(output / name, target / name) for name in combined], check)
        remove_all([info.url for info in infos], check=check)

    def completed(self, step: int, directory: str) -> None:
        """Inform the other processes that the index contains the checkpoint copied last."""
        url = self._url / CHECKPOINTS_NAME / directory
        leave_checkpoint(self._staging / CHECKPOINTS_NAME / str(step), url)
        self._messages.send(_key(self._number, "completed"))

    def close(self) -> None:
        """Inform the other processes that everything has been copied."""
        self._messages.send(_CLOSED)


class PartUploads(BackgroundCopies):
    """Copies the checkpoints of a process other than the first; see `PartCollector`.

    Args:
      staging: this process's staging directory, which is equal to the run in the bucket.
      layout: the objects of the run.
      messages: messages to and from the other processes.
    """

    def __init__(self, staging: Path, layout: Layout, messages: ProcessMessages) -> None:
        super().__init__(layout.url, messages)
        self._staging, self._own_messages = staging, messages
        self._steps = set(layout.checkpoints)
        self._numbers = itertools.count()

    def synchronize(self, step: int | None) -> None:
        """Copy the changes that the first process made to the run before training.

        Args:
          step: the step of the checkpoint to resume from, whose arrays are copied; None if there is
            no checkpoint.

        Raises:
          DamagedCheckpoint: a file of the checkpoint differs from what was saved.
          StorageError: an object cannot be read.
          NotWritten: a file cannot be written.
        """
        layout = read_layout(self._url)
        self._steps = set(layout.checkpoints)
        copy_to_continue(layout, self._staging)
        if step is not None:
            require_intact(self._staging / CHECKPOINTS_NAME, step)

    def _complete_steps(self) -> Iterable[int]:
        return self._steps

    def _copy(self, steps: Sequence[int], *, closing: bool) -> None:
        for step in steps:
            self._copy_part(step)
        if closing:
            self._own_messages.wait_for([_CLOSED], begun=False)
            log = read_log(self._url / parts_name(LOG_NAME))
            if log:  # needed if the caller returns the last metrics
                write_file(self._staging / LOG_NAME, log)

    def _copy_part(self, step: int) -> None:
        messages, number, process = self._own_messages, next(self._numbers), jax.process_index()
        source = self._staging / CHECKPOINTS_NAME / str(step)
        begin = _key(number, "begin")
        target = self._url / CHECKPOINTS_NAME / messages.wait_for([begin], begun=False)[begin]
        messages.send(_key(number, f"begun-{process}"))
        copies = [(source / name, target / name) for name in values_of(source, process)]
        own = target / _PARTS / str(process)
        copies += [(source / name, own / name) for name in index_of(source)]
        upload_all(copies, messages.raise_if_failed)
        messages.send(_key(number, f"copied-{process}"))
        messages.wait_for([_key(number, "completed")], begun=True)
        self._steps.add(step)
        leave_checkpoint(source, target)


def upload_all(copies: Sequence[tuple[Path, ObjectUrl]], check: Callable[[], None]) -> None:
    """Upload files in several threads, and call `check` before each attempt."""

    def copy(source: Path, target: ObjectUrl) -> None:
        upload(source, target, check=check)

    with ThreadPoolExecutor(_THREADS) as pool:
        for result in [pool.submit(copy, *each) for each in copies]:
            result.result()


def _key(number: int, event: str) -> str:
    """Return the key of a message about the run's checkpoint with a given number."""
    return f"{_group(number)}/{event}"


def _group(number: int) -> str:
    """Return the beginning of the keys of all messages about a checkpoint."""
    return f"checkpoint-{number}"
