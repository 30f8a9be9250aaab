"""Look up batches by step, and prepare them ahead of the training loop."""

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

# A batch that takes longer than this is overdue. Making a batch takes milliseconds, and starting a
# process takes a second or two.
_OVERDUE_SECONDS = 3.0
_POLL_SECONDS = 0.5
_WARNED_SECONDS = 60.0

logger = logging.getLogger(__name__)


class BatchSource:
    """The batches of a run, indexed by step and restricted to one process's rows of a global batch.

    Row r of step s is example (first_example + s * batch_size + r) in the endless sequence of
    epochs that starts with `first_epoch`. A step therefore does not depend on earlier steps, and
    with any mesh, a process makes only the rows that its devices need.
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
        first_example: int = 0,
    ):
        """Define `num_steps` batches of `batch_size` rows each.

        Args:
          examples: the examples.
          batch_size: the number of rows in a batch, across all processes.
          num_steps: the number of batches.
          local_rows: [R] the rows of each batch that this process makes, in ascending order; None
            for all.
          first_step: the step of the whole run at which these batches begin.
          run_steps: the number of steps in the whole run; None if these are all of its steps.
          first_epoch: the first epoch; greater than 0 if earlier epochs have already been used.
          first_example: the number of examples, counted from the start of `first_epoch`, that have
            already been used in batches of another size.

        Raises:
          ValueError: `local_rows` does not contain ascending numbers from 0 to batch_size - 1.
        """
        rows = np.arange(batch_size) if local_rows is None else np.asarray(local_rows)
        if not len(rows) or rows[0] < 0 or rows[-1] >= batch_size or (np.diff(rows) < 1).any():
            raise ValueError(
                f"local_rows={rows}: expected ascending numbers from 0 to {batch_size - 1}."
            )
        self.examples = examples
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.local_rows = rows
        self._first_step = first_step
        self._first_epoch = first_epoch
        self._first_example = first_example
        self._run_steps = first_step + num_steps if run_steps is None else run_steps

    def __len__(self) -> int:
        return self.num_steps

    def __getitem__(self, step: int) -> Batch:
        """Return this process's rows of the batch of `step`.

        Raises:
          IndexError: `step` is not in 0 to num_steps - 1.
        """
        if not 0 <= step < self.num_steps:
            raise IndexError(f"step {step}: expected 0 to {self.num_steps - 1}")
        positions = self._first_example + int(step) * self.batch_size + self.local_rows
        epochs, indices = np.divmod(positions, len(self.examples))
        masking = self.examples.config.masking
        rate = masking.rate_at(self._first_step + int(step), self._run_steps)
        # Row numbers ascend, so each epoch's rows are contiguous. A batch contains rows from
        # multiple epochs only at an epoch boundary, and rows from more than two epochs only if the
        # corpus is smaller than a batch.
        parts = [
            self.examples.examples(self._first_epoch + epoch, indices[epochs == epoch], rate)
            for epoch in np.unique(epochs).tolist()
        ]
        return _concatenate(parts)


class EvaluationSource:
    """The batches of one pass over a split: each record occurs once, exactly as in epoch 0.

    Rows after the last record are padding with zero weights. If `max_records` is set, only the
    first `max_records` records are used, in the order of epoch 0, which is random but fixed.
    """

    def __init__(
        self,
        examples: ExampleSource,
        *,
        batch_size: int,
        local_rows: NDArray[np.int64] | None = None,
        max_records: int = 0,
    ):
        """Define a pass over the split.

        Args:
          examples: the examples.
          batch_size: the number of rows in a batch, across all processes.
          local_rows: [R] the rows of each batch that this process makes, in ascending order; None
            for all.
          max_records: the maximum number of records; 0 for no limit.

        Raises:
          ValueError: `local_rows` does not contain ascending numbers from 0 to batch_size - 1.
        """
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
        """Return this process's rows of batch `step`.

        Raises:
          IndexError: there is no such batch.
        """
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step}: expected 0 to {len(self) - 1}")
        examples = self._batches.examples
        positions = int(step) * self._batches.batch_size + self._batches.local_rows
        indices = positions[positions < self._num_records]
        parts = [examples.padding(len(positions) - len(indices))]
        if len(indices):
            parts.insert(0, examples.examples(0, indices))
        return _concatenate(parts)


def _concatenate(parts: list[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class Loader:
    """Iterates over a source's batches, starting at `start_step`, and prepares them ahead of time.

    Its only state is `step`, the step of the next batch: a loader started at this step continues
    with exactly the same batches. Its threads and processes end when its `with` block ends, when
    `close` is called, after an error, or when the program ends.
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
        """Start preparing batches; starting at a late step takes no longer than at step 0.

        Args:
          source: the batches.
          start_step: the step of the first batch.
          num_workers: the number of processes that make batches; 0 makes them in a thread of this
            process. The number does not affect the batches. Processes are spawned, so the
            program's main module must be importable without side effects.
          prefetch: the number of batches that the thread, or each process, keeps ready. 0 makes
            each batch only when it is requested, and requires `num_workers` to be 0.
          while_waiting: called repeatedly while a batch is overdue, for example because a process
            or the file system hangs. It may raise an exception to stop waiting.

        Raises:
          ValueError: a number is out of range.
        """
        if num_workers < 0 or prefetch < (1 if num_workers else 0):
            raise ValueError(
                f"num_workers={num_workers}, prefetch={prefetch}: both must be at least 0, "
                "and prefetch must be at least 1 if there are workers."
            )
        if not 0 <= start_step <= len(source):
            raise ValueError(f"start_step={start_step}: expected 0 to {len(source)}.")
        self.step = start_step
        self._end = len(source)
        self._requested = start_step
        self._ahead = prefetch * max(num_workers, 1)
        self._while_waiting = while_waiting
        self._workers: list[BatchWorker] = []
        # The finalizer also closes the workers when the program ends.
        self._close = weakref.finalize(self, _close_all, self._workers)
        if start_step < self._end:
            for number in range(1, num_workers + 1):
                name = f"data worker {number} of {num_workers}"
                self._workers.append(ProcessWorker(source, name))
            if not num_workers:
                self._workers.append(ThreadWorker(source))
            self._request(self._ahead)

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        """Return the next batch, or raise the error that occurred while making it.

        Raises:
          ValueError: the loader is closed.
          OSError: a worker process was killed; the message names the process and the cause.
        """
        if not self._close.alive:
            raise ValueError("This loader is closed. Create a new one.")
        if self.step >= self._end:
            raise StopIteration
        self._request(max(self._ahead, 1))
        try:
            batch = self._take(self._workers[self.step % len(self._workers)])
        except BaseException:
            self.close()
            raise
        self.step += 1
        self._request(self._ahead)
        return batch

    def _request(self, ahead: int) -> None:
        while self._requested < min(self.step + ahead, self._end):
            self._workers[self._requested % len(self._workers)].request(self._requested)
            self._requested += 1

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
                    "%s has not made a batch for %.0f s. It or the file system may be stuck; "
                    "the run keeps waiting.",
                    worker.name.capitalize(),
                    seconds,
                )
                warned = True

    def close(self) -> None:
        """Stop the threads or processes. It is safe to call this twice."""
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
