"""The progress of a corpus preparation."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bert_jax.corpus.shards import UnitResult
from bert_jax.corpus.units import StreamCounts
from bert_jax.text.documents import SourceCounts


@dataclass(frozen=True)
class Progress:
    """How far a preparation is. "New" is what this call did, not an earlier one it continues.

    Attributes:
        fraction: of the inputs done, estimated from the bytes read on disk; None if unknown.
        peak_worker_memory: bytes, the most any worker has held.
    """

    seconds: float
    fraction: float | None
    shards: int
    new_shards: int
    text_bytes: int
    new_text_bytes: int
    new_tokens: int
    peak_worker_memory: int

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the speed of this call; None while nothing is known."""
        if not self.fraction or not self.new_text_bytes:
            return None
        bytes_left = self.text_bytes * (1 / self.fraction - 1)
        return bytes_left * self.seconds / self.new_text_bytes


class ProgressMeter:
    """Adds up the shards of a preparation, those an earlier call made and new ones."""

    def __init__(self, total_bytes: int):
        """Start the clock. `total_bytes` are those of the inputs on disk, 0 if unknown."""
        self._start = time.perf_counter()
        self._total_bytes = total_bytes
        self._shards = self._new_shards = 0
        self._text_bytes = self._new_text_bytes = self._new_tokens = 0
        self._peak_memory = 0

    def add_kept(self, result: UnitResult) -> None:
        """Count a shard of an earlier call."""
        self._shards += 1
        self._text_bytes += result.num_text_bytes

    def add_new(self, result: UnitResult, peak_memory: int) -> None:
        """Count a shard made now."""
        self.add_kept(result)
        self._new_shards += 1
        self._new_text_bytes += result.num_text_bytes
        self._new_tokens += result.num_tokens
        self._peak_memory = max(self._peak_memory, peak_memory)

    def read(self, source: SourceCounts, stream: StreamCounts) -> Progress:
        """The state now."""
        fraction = None
        if self._total_bytes and source.text_bytes:
            finished = (self._text_bytes + stream.left_out_bytes) / source.text_bytes
            fraction = source.bytes_read / self._total_bytes * finished
        return Progress(
            seconds=time.perf_counter() - self._start,
            fraction=fraction,
            shards=self._shards,
            new_shards=self._new_shards,
            text_bytes=self._text_bytes,
            new_text_bytes=self._new_text_bytes,
            new_tokens=self._new_tokens,
            peak_worker_memory=self._peak_memory,
        )
