"""Measure how fast training batches are made from a prepared corpus."""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bert_jax.pipeline.examples import ExampleSource
from bert_jax.pipeline.loader import BatchSource, Loader
from bert_jax.processes import available_cores


@dataclass(frozen=True)
class LoadingSpeed:
    """The speed at which batches are made; `str()` formats it as one line.

    Attributes:
      tokens_per_second: the number of positions per second, including padding.
      seconds_per_batch: the mean time per batch in seconds.
    """

    tokens_per_second: float
    seconds_per_batch: float

    def __str__(self) -> str:
        return (
            f"{self.tokens_per_second / 1e6:7.2f} M tokens/s  "
            f"{1e3 * self.seconds_per_batch:6.2f} ms per batch"
        )


@dataclass(frozen=True)
class InlineSpeed(LoadingSpeed):
    """The speed at which one core makes batches, and how full their rows are.

    `str()` formats both as one line.

    Attributes:
      filled: the fraction of positions that are not padding.
      processor_seconds: the CPU time of the whole measurement in seconds.
      seconds: the requested duration of the measurement in seconds.
      stages: a dict from each stage's name to the time spent in it, in seconds.
    """

    filled: float
    processor_seconds: float
    seconds: float
    stages: Mapping[str, float]

    def __str__(self) -> str:
        return (
            f"{super().__str__()}, {self.filled:.2%} filled, "
            f"{self.processor_seconds:.1f} s of CPU time in {self.seconds:.1f} s"
        )

    @property
    def shares(self) -> str:
        """The percentage of the time spent in each stage, as text."""
        total = sum(self.stages.values())
        shares = (f"{stage} {time / total:.0%}" for stage, time in self.stages.items())
        return ", ".join(shares)


def describe_examples(examples: ExampleSource, batch_size: int) -> list[str]:
    """Describe the records and batches that are measured.

    Raises:
      ValueError: the corpus has too few records for a batch.
    """
    info = examples.corpus.info
    if len(examples) < batch_size:
        raise ValueError(
            f"{examples.corpus.directory}: the corpus has {len(examples)} records, too few for a "
            f"batch of {batch_size}. Choose a smaller --batch-size or a larger corpus."
        )
    return [
        f"{info.num_records:,} records of {examples.length} positions in {len(info.shards)} "
        f"shards, {info.num_fragments / info.num_records:.2f} documents per record",
        f"batches of {batch_size}, sentence pairs: {examples.config.sentence_pairs}, "
        f"{available_cores()} cores",
    ]


def measure_inline(examples: ExampleSource, batch_size: int, seconds: float) -> InlineSpeed:
    """Measure how fast one core makes batches over a period of at least `seconds`.

    At least one batch is made, regardless of how long it takes.
    """
    batches_per_epoch = len(examples) // batch_size
    rows = np.arange(batch_size)
    with _one_core():
        examples.examples(0, rows)  # opens files and warms up allocators
        processor, begin = time.process_time(), time.perf_counter()
        clock, filled, step = _Clock(), 0.0, 0
        while not step or time.perf_counter() - begin < seconds:
            epoch, number = divmod(step, batches_per_epoch)
            batch = examples.examples(epoch, number * batch_size + rows, stage_done=clock)
            filled += float((batch["document_ids"] > 0).mean())
            step += 1
            clock("filled")  # the measurement's own time, which is subtracted below
        elapsed = time.perf_counter() - begin - clock.seconds.pop("filled")
        processor = time.process_time() - processor
    return InlineSpeed(
        tokens_per_second=step * batch_size * examples.length / elapsed,
        seconds_per_batch=elapsed / step,
        filled=filled / step,
        processor_seconds=processor,
        seconds=seconds,
        stages=dict(clock.seconds),
    )


def measure_loader(
    examples: ExampleSource, batch_size: int, seconds: float, num_workers: int
) -> LoadingSpeed:
    """Measure how fast the training loop's loader makes batches.

    Args:
      examples: the examples of a corpus.
      batch_size: the number of rows in a batch.
      seconds: the minimum duration in seconds; at least one batch is made.
      num_workers: the number of worker processes; 0 makes the batches in a thread of this process.
    """
    source = BatchSource(examples, batch_size=batch_size, num_steps=1 << 40)
    with Loader(source, num_workers=num_workers) as loader:
        for _ in range(1 + 2 * num_workers):  # wait until every worker has started
            next(loader)
        begin, count = time.perf_counter(), 0
        while not count or time.perf_counter() - begin < seconds:
            next(loader)
            count += 1
        elapsed = time.perf_counter() - begin
    return LoadingSpeed(count * batch_size * examples.length / elapsed, elapsed / count)


def measured_lines(
    examples: ExampleSource, batch_size: int, seconds: float, num_workers: Sequence[int]
) -> Iterator[str]:
    """Yield lines that describe the examples, and then a line for each speed that is measured.

    Args:
      examples: the examples of a corpus.
      batch_size: the number of rows in a batch.
      seconds: the minimum duration of each measurement in seconds.
      num_workers: the numbers of worker processes to measure the loader with.
    """
    yield from describe_examples(examples, batch_size)
    inline = measure_inline(examples, batch_size, seconds)
    yield f"{'one core, inline':20}{inline}"
    yield f"{'':20}{inline.shares}"
    for count in num_workers:
        speed = measure_loader(examples, batch_size, seconds, count)
        yield f"{f'loader, {count} workers':20}{speed}"


class _Clock:
    """A timer that is called at the end of each stage and adds up the seconds spent in it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._last = time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] += now - self._last
        self._last = now


@contextlib.contextmanager
def _one_core() -> Iterator[None]:
    """Pin this thread, and any threads it starts, to one core if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
