"""Batches addressed by step, and a loader that prepares them ahead of the training loop."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from queue import Empty
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from bert_jax.pipeline.batch_workers import Batches, BatchWorker, ProcessWorker, ThreadWorker
from bert_jax.pipeline.examples import Batch, ExampleSource

# A batch is overdue after this time: making one takes milliseconds, and starting a process a second
# or two.
_OVERDUE_SECONDS = 3.0
_POLL_SECONDS = 0.5
_WARNED_SECONDS = 60.0

logger = logging.getLogger(__name__)


class BatchSource:
    """The batches of a run, by step: the rows of one process of a global batch.

    Row r of step s is example (s * batch_size + r) of the endless sequence of epochs from
    `first_epoch` on, so a step sees the same whatever ran before it, and a process makes the rows
    that its devices need and no others, however the mesh lays them out.
    """

    def __init__(
        self,
        examples: ExampleSource,
        *,
        batch_size: int,
        num_steps: int,
        local_rows: NDArray[np.int64] | None = None,
        first_step: int = 0,
        run_steps: int | None = None,
        first_epoch: int = 0,
    ):
        """Describes `num_steps` batches of `batch_size` rows over all processes.

        Args:
            first_epoch: of the examples, where those before it have been seen.
            first_step: of the run, which these steps are a part of, and run_steps: all it has; by
                default they are all of it.
            local_rows: [R] the rows of each batch that are wanted here, ascending; by default all.

        Raises:
            ValueError: `local_rows` are not ascending numbers in 0..batch_size-1.
        """
        rows = np.arange(batch_size) if local_rows is None else np.asarray(local_rows)
        if not len(rows) or rows[0] < 0 or rows[-1] >= batch_size or (np.diff(rows) < 1).any():
            raise ValueError(
                f"local_rows is {rows}; expected ascending rows of a batch of {batch_size}"
            )
        self.examples = examples
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.local_rows = rows
        self._first_step = first_step
        self._first_epoch = first_epoch
        self._last_step = (num_steps if run_steps is None else run_steps) - 1

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> Batch:
        """Returns this process's rows of the batch of `step`.

        Raises:
            IndexError: `step` is not in 0..num_steps-1.
        """
        if not 0 <= step < self.num_steps:
            raise IndexError(f"step {step} of {self.num_steps}")
        place = int(step) * self.batch_size + self.local_rows
        epochs, indices = np.divmod(place, len(self.examples))
        progress = (self._first_step + int(step)) / max(self._last_step, 1)
        # Ascending rows: an epoch's are together. There are two where a batch straddles epochs,
        # more only where the corpus is smaller than the batch.
        parts = [
            self.examples.examples(self._first_epoch + epoch, indices[epochs == epoch], progress)
            for epoch in np.unique(epochs).tolist()
        ]
        return _concatenate(parts)


class EvaluationSource:
    """The batches of one pass over a split: every record once, as examples of epoch 0.

    The rows beyond the last record are padding with zero weights. A pass over `max_records` takes
    the first of epoch 0, whose order is random and always the same; 0 takes all.
    """

    def __init__(
        self,
        examples: ExampleSource,
        *,
        batch_size: int,
        local_rows: NDArray[np.int64] | None = None,
        max_records: int = 0,
    ):
        """Describes one pass in batches of `batch_size` rows; the rest is as in `BatchSource`."""
        self._num_records = min(len(examples), max_records or len(examples))
        num_steps = -(-self._num_records // batch_size)
        self._batches = BatchSource(
            examples,
            batch_size=batch_size,
            num_steps=num_steps,
            local_rows=local_rows,
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, step: int) -> Batch:
        """Returns this process's rows of batch `step`; raises IndexError beyond the last."""
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step} of {len(self)}")
        examples = self._batches.examples
        place = int(step) * self._batches.batch_size + self._batches.local_rows
        indices = place[place < self._num_records]
        parts = [examples.padding(len(place) - len(indices))]
        if len(indices):
            parts.insert(0, examples.examples(0, indices))
        return _concatenate(parts)


def _concatenate(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Loader:
    """Iterates over the batches of a source from `start_step` on, preparing some ahead.

    Its whole state is `step`, the number of the batch that comes next: a loader started there
    continues exactly. Its threads and processes end with the `with` statement, `close`, an error or
    the program.
    """

    def __init__(
        self,
        source: Batches,
        *,
        start_step: int = 0,
        num_workers: int = 0,
        prefetch: int = 2,
        while_waiting: Callable[[], None] = lambda: None,
    ):
        """Starts to prepare batches; starting late costs nothing.

        Args:
            num_workers: processes that make batches; 0 makes them in a thread of this process.
                The batches are the same for any number. Processes are spawned: the program's main
                module must be importable without side effects.
            prefetch: batches kept ready by the thread, or by each process. 0 makes each batch when
                it is asked for, and is refused with processes.
            while_waiting: called repeatedly while a batch is overdue, for example because a process
                or the file system hangs; may raise to end the wait.

        Raises:
            ValueError: a number makes no sense, or `start_step` lies beyond the end.
        """
        if num_workers < 0 or prefetch < (1 if num_workers else 0):
            raise ValueError(
                f"num_workers is {num_workers} and prefetch {prefetch}; expected at least 0 each, "
                "and a prefetch of at least 1 with workers"
            )
        if not 0 <= start_step <= len(source):
            raise ValueError(f"start_step is {start_step}; the source has {len(source)} batches")
        self.step = start_step
        self._end = len(source)
        self._asked = start_step
        self._ahead = prefetch * max(num_workers, 1)
        self._while_waiting = while_waiting
        self._workers: list[BatchWorker] = []
        # Also at the program's end.
        self._close = weakref.finalize(self, _close_all, self._workers)
        if start_step < self._end:
            for number in range(1, num_workers + 1):
                name = f"data worker {number} of {num_workers}"
                self._workers.append(ProcessWorker(source, name))
            if not num_workers:
                self._workers.append(ThreadWorker(source))
            self._ask(self._ahead)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """Return the next batch; an error that occurred while making it is raised here.

        Raises:
            ValueError: the loader is closed.
            OSError: a worker process was killed; names the process and the cause.
        """
        if not self._close.alive:
            raise ValueError("this loader is closed")
        if self.step >= self._end:
            raise StopIteration
        self._ask(max(self._ahead, 1))
        try:
            batch = self._take(self._workers[self.step % len(self._workers)])
        except BaseException:
            self.close()
            raise
        self.step += 1
        self._ask(self._ahead)
        return batch

    def _ask(self, ahead: int) -> None:
        while self._asked < min(self.step + ahead, self._end):
            self._workers[self._asked % len(self._workers)].ask(self._asked)
            self._asked += 1

    def _take(self, worker: BatchWorker) -> Batch:
        began, warned = time.monotonic(), False
        while True:
            try:
                return worker.take(_POLL_SECONDS)
            except Empty:
                seconds = time.monotonic() - began
            if seconds > _OVERDUE_SECONDS:
                self._while_waiting()
            if seconds > _WARNED_SECONDS and not warned:
                logger.warning(
                    "%s has not made a batch for %.0f s: it or the file system may hang. "
                    "The run waits for it.",
                    worker.name.capitalize(),
                    seconds,
                )
                warned = True

    def close(self) -> None:
        """Ends the threads or processes; safe to call twice."""
        self._close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _close_all(workers: list[BatchWorker]) -> None:
    for worker in workers:
        worker.close()
