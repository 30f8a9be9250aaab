"""Report the progress of a corpus preparation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from bert_jax.corpus.shards import UnitResult


@dataclass(frozen=True)
class Progress:
    """The progress of a preparation.

    The `new_` attributes exclude work from an interrupted earlier call.

    Attributes:
      seconds: the time since this call began.
      fraction: the fraction of the inputs that has been processed, estimated from the bytes read;
        None if unknown.
      shards: the number of finished shards.
      new_shards: the number of shards written by this call.
      text_bytes: the amount of text in finished shards, in UTF-8 bytes.
      new_text_bytes: the amount of text in new shards, in UTF-8 bytes.
      new_tokens: the number of tokens in new shards.
      peak_worker_memory: the maximum memory that any worker used, in bytes.
      screened_bytes: the amount of text that was screened, in UTF-8 bytes; None if no documents are
        being screened.
    """

    seconds: float
    fraction: float | None
    shards: int
    new_shards: int
    text_bytes: int
    new_text_bytes: int
    new_tokens: int
    peak_worker_memory: int
    screened_bytes: int | None = None

    @property
    def seconds_left(self) -> float | None:
        """The remaining time, estimated from the speed of this call, or None if unknown."""
        if not self.fraction or not self.new_text_bytes:
            return None
        bytes_left = self.text_bytes * (1 / self.fraction - 1)
        return bytes_left * self.seconds / self.new_text_bytes


class ProgressMeter:
    """A counter of finished shards, both new ones and those kept from an earlier call."""

    def __init__(self) -> None:
        """Start the clock."""
        self._start = time.perf_counter()
        self._shards = self._new_shards = 0
        self._text_bytes = self._new_text_bytes = self._new_tokens = 0
        self._peak_memory = 0

    def add_kept(self, result: UnitResult) -> None:
        """Count a shard kept from an earlier call."""
        self._shards += 1
        self._text_bytes += result.num_text_bytes

    def add_new(self, result: UnitResult, peak_memory: int) -> None:
        """Count a shard written by this call."""
        self.add_kept(result)
        self._new_shards += 1
        self._new_text_bytes += result.num_text_bytes
        self._new_tokens += result.num_tokens
        self._peak_memory = max(self._peak_memory, peak_memory)

    @property
    def text_bytes(self) -> int:
        """The amount of text in finished shards, in UTF-8 bytes."""
        return self._text_bytes

    def read(self, fraction: float | None, screened_bytes: int | None = None) -> Progress:
        """Return the current progress.

        Args:
          fraction: the fraction of the inputs that has been processed; None if unknown.
          screened_bytes: the amount of text that was screened, during screening.
        """
        return Progress(
            seconds=time.perf_counter() - self._start,
            fraction=fraction,
            shards=self._shards,
            new_shards=self._new_shards,
            text_bytes=self._text_bytes,
            new_text_bytes=self._new_text_bytes,
            new_tokens=self._new_tokens,
            peak_worker_memory=self._peak_memory,
            screened_bytes=screened_bytes,
        )


ProgressCallback = Callable[[Progress], None]
