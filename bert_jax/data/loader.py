"""Batches addressed by step, and a loader that prepares them ahead of the training loop."""

from __future__ import annotations

import signal
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Protocol

import grain
import numpy as np
from absl import flags
from numpy.typing import NDArray

from bert_jax.data.pipeline import Batch, ExampleSource
from bert_jax.data.worker_life import end_with_parent


class Batches(Protocol):
    """Batches by step; IndexError beyond the last."""

    def __len__(self) -> int: ...

    def __getitem__(self, step: int, /) -> Batch: ...


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
    continues exactly. Leaving a `with` statement, `close` or the end of the program ends its
    threads and processes.
    """

    def __init__(
        self,
        source: Batches,
        *,
        start_step: int = 0,
        num_workers: int = 0,
        prefetch: int = 2,
    ):
        """Starts to prepare batches; starting late costs nothing.

        Args:
            num_workers: processes that make batches; 0 makes them in a thread of this process.
                The batches are the same for any number. Processes are spawned: the program's main
                module must be importable without side effects.
            prefetch: batches kept ready by the thread, or by each process. 0 makes each batch when
                it is asked for, and is refused with processes.

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
        self._shared = num_workers > 0  # batches come in shared memory, to be given back at once
        batches = grain.MapDataset.source(source).slice(slice(start_step, None))
        self._running = [_iterate(batches, num_workers, prefetch)]
        self._first: list[Future[Batch]] = []
        # Also at the program's end.
        self._close = weakref.finalize(self, _shut_down, self._running, self._first)
        if num_workers and start_step < self._end:
            self._first.append(_begin(self._running[0]))
        elif prefetch and start_step < self._end:
            self._running[0].start_prefetch()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if not self._running:
            raise ValueError("this loader is closed")
        if self.step >= self._end:
            raise StopIteration
        batch = self._first[0].result() if self._first else next(self._running[0])
        self._first.clear()
        self.step += 1
        return {name: np.array(array) for name, array in batch.items()} if self._shared else batch

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


def _iterate(
    batches: grain.MapDataset, num_workers: int, prefetch: int
) -> grain.DatasetIterator[Batch]:
    if not num_workers:
        threads = 1 if prefetch else 0
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
        return iter(batches.to_iter_dataset(options))
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain reads its own flags; their defaults are meant
    inline = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    processes = grain.MultiprocessingOptions(
        num_workers=num_workers, per_worker_buffer_size=prefetch
    )
    return iter(batches.to_iter_dataset(inline).mp_prefetch(processes, _begin_worker))


def _begin(batches: grain.DatasetIterator[Batch]) -> Future[Batch]:
    """Asks for the first batch, which starts the workers, in a thread that holds signals back.

    Its workers inherit that: each imports for a second before it can say what it ignores.
    """
    held = {signal.SIGINT, signal.SIGTERM}
    starter = ThreadPoolExecutor(
        1, initializer=signal.pthread_sigmask, initargs=(signal.SIG_BLOCK, held)
    )
    first = starter.submit(next, batches)
    starter.shutdown(wait=False)
    return first


def _begin_worker(index: int, count: int) -> None:
    """Makes a worker's life that of its parent.

    Signals sent to the whole group (Ctrl-C, a scheduler's SIGTERM) are the parent's to answer: it
    may still need batches to reach its checkpoint. A parent that is killed outright ends its
    workers too, which would otherwise wait for it for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()


def _shut_down(running: list[grain.DatasetIterator[Batch]], first: list[Future[Batch]]) -> None:
    wait(first)
    running.pop().close()
