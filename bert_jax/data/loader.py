"""Batches addressed by step, and a loader that prepares them ahead of the training loop."""

from __future__ import annotations

from types import TracebackType

import grain
import numpy as np

from bert_jax.data.pipeline import Batch, ExampleSource


class BatchSource:
    """The batches of a run, by step: the rows of one process of a global batch.

    Row r of step s is example (s * batch_size + r) of the endless sequence of epochs, so a step
    sees the same whatever ran before it, and a process takes an equal contiguous share of the rows
    whatever the number of processes.
    """

    def __init__(
        self,
        examples: ExampleSource,
        *,
        batch_size: int,
        num_steps: int,
        process_index: int = 0,
        process_count: int = 1,
    ):
        """Describes `num_steps` batches of `batch_size` rows over all processes.

        Raises:
            ValueError: the rows cannot be shared out equally.
        """
        if batch_size < 1 or batch_size % process_count:
            raise ValueError(
                f"a batch of {batch_size} rows cannot be shared by {process_count} processes: "
                "choose a multiple of it"
            )
        assert 0 <= process_index < process_count
        self.examples = examples
        self.batch_size = batch_size
        self.num_steps = num_steps
        self.local_rows = np.arange(batch_size).reshape(process_count, -1)[process_index]

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
        # Ascending rows: an epoch's are together. There are two where a batch straddles epochs,
        # more only where the corpus is smaller than the batch.
        parts = [
            self.examples.examples(epoch, indices[epochs == epoch])
            for epoch in np.unique(epochs).tolist()
        ]
        return _concatenate(parts)


class EvaluationSource:
    """The batches of one pass over a split: every record once, as examples of epoch 0.

    The rows beyond the last record are padding with zero weights.
    """

    def __init__(
        self,
        examples: ExampleSource,
        *,
        batch_size: int,
        process_index: int = 0,
        process_count: int = 1,
    ):
        """Describes one pass in batches of `batch_size` rows over all processes.

        Raises:
            ValueError: the rows cannot be shared out equally.
        """
        num_steps = -(-len(examples) // batch_size)
        self._batches = BatchSource(
            examples,
            batch_size=batch_size,
            num_steps=num_steps,
            process_index=process_index,
            process_count=process_count,
        )

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, step: int) -> Batch:
        """Returns this process's rows of batch `step`; raises IndexError beyond the last."""
        if not 0 <= step < len(self):
            raise IndexError(f"batch {step} of {len(self)}")
        examples = self._batches.examples
        place = int(step) * self._batches.batch_size + self._batches.local_rows
        indices = place[place < len(examples)]
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
    continues exactly. Close it, or use it in a `with` statement, to end its threads or processes.
    """

    def __init__(
        self,
        source: BatchSource | EvaluationSource,
        *,
        start_step: int = 0,
        num_workers: int = 0,
        prefetch: int = 2,
    ):
        """Starts to prepare batches; seeking costs nothing.

        Args:
            num_workers: processes that make batches; 0 makes them in a thread of this process.
                The batches are the same for any number. With processes, the program's main module
                must be importable without side effects (they are spawned).
            prefetch: batches kept ready by the thread, or by each process; 0 with num_workers=0
                makes each batch when it is asked for.

        Raises:
            ValueError: a number is negative, or `start_step` lies beyond the end.
        """
        if num_workers < 0 or prefetch < 0:
            raise ValueError(f"num_workers {num_workers} and prefetch {prefetch} must be >= 0")
        if not 0 <= start_step <= len(source):
            raise ValueError(f"start_step is {start_step}; the source has {len(source)} batches")
        self.step = start_step
        self._end = len(source)
        threads = min(1, prefetch)
        dataset = grain.MapDataset.source(source).slice(slice(start_step, None))
        batches = dataset.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=prefetch)
        )
        if num_workers:
            batches = batches.mp_prefetch(
                grain.MultiprocessingOptions(
                    num_workers=num_workers, per_worker_buffer_size=max(1, prefetch)
                )
            )
        self._iterator = iter(batches) if start_step < self._end else None
        if self._iterator is not None:
            self._iterator.start_prefetch()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Batch:
        if self.step >= self._end:
            raise StopIteration
        assert self._iterator is not None
        batch: Batch = next(self._iterator)
        self.step += 1
        return batch

    def close(self) -> None:
        """Ends the threads or processes; safe to call twice."""
        if self._iterator is not None:
            self._iterator.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
