"""Measure how long the devices had nothing to do because the training loop waited for a batch."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from types import TracebackType
from typing import Any

import jax

from bert_jax.goodput.categories import COMPILATION, FIRST_BATCH, PRODUCTIVE, STALL
from bert_jax.goodput.ledger import Ledger
from bert_jax.tasks.task import Metrics


class BatchWaits:
    """Divides the training loop's time into waiting for batches, compiling, and computing steps.

    While the loop waits for a batch, the devices are usually still computing the previous step.
    Only the time after that step is a stall. To measure a stall, a thread waits for the step to
    finish. It does this only if the loop also stalled at the previous batch, since waking the
    thread slows down short steps. For the first stall in a series, the end of the step is
    estimated.

    Use it as a context manager, which ends the thread.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first = True
        self._compiles = True
        self._stalls = False
        self._began = self._ended = 0.0
        self._running: Any = None  # a jax.Array, whose `is_ready` has no type annotation
        self._computing_seconds, self._computed = 0.0, 0
        self._watch: _Watch | None = None

    def new_program(self) -> None:
        """Count as compilation the time from now until the next step is dispatched."""
        self._compiles = True

    def begin(self, running: Metrics | None) -> None:
        """Begin to wait for a batch.

        Args:
          running: the metrics of the previous step, which may still be running; None if there is no
            such step.
        """
        self._began = time.perf_counter()
        self._ledger.switch(FIRST_BATCH if self._first else STALL)
        self._running = None if running is None else next(iter(running.values())).sum
        if self._stalls and self._running is not None:
            self._watch = self._watch or _Watch()
            self._watch.start(self._running)

    def end(self) -> float:
        """End the wait, and return how many seconds the devices were idle."""
        now = time.perf_counter()
        waited, running = now - self._began, self._running
        self._ledger.switch(COMPILATION if self._compiles else PRODUCTIVE)
        computing = self._began - self._ended
        self._ended = now
        if self._first or running is None:
            self._first = False
            return waited
        if not running.is_ready():
            self._stalls = False
            idle = 0.0
            self._computing_seconds += computing + waited
            self._computed += 1
        elif self._stalls and self._watch is not None:
            idle = max(0.0, now - max(self._began, self._watch.finished()))
        else:
            mean = self._computing_seconds / max(self._computed, 1)
            idle = max(0.0, min(waited, waited + computing - mean))
            self._stalls = True
        self._ledger.move(waited - idle, STALL, PRODUCTIVE)
        return idle

    def dispatched(self) -> None:
        """Count the time after this call as computing the step."""
        if self._compiles:
            self._compiles = False
            self._ended = time.perf_counter()
            self._ledger.switch(PRODUCTIVE)

    def __enter__(self) -> BatchWaits:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._watch is not None:
            self._watch.close()


class _Watch:
    """A thread that records when arrays have been computed."""

    def __init__(self) -> None:
        self._arrays: SimpleQueue[jax.Array | None] = SimpleQueue()
        self._times: SimpleQueue[float] = SimpleQueue()
        self._started = 0
        threading.Thread(target=self._record, daemon=True).start()

    def start(self, array: jax.Array) -> None:
        """Make the thread wait for an array."""
        self._started += 1
        self._arrays.put(array)

    def finished(self) -> float:
        """Return the time at which the newest array, which must be complete, was computed."""
        # Drop the times of arrays that were computed after the loop had stopped waiting for them.
        while self._started > 1:
            self._started -= 1
            self._times.get()
        self._started = 0
        return self._times.get()

    def close(self) -> None:
        """End the thread."""
        self._arrays.put(None)

    def _record(self) -> None:
        while (array := self._arrays.get()) is not None:
            try:
                jax.block_until_ready(array)
            except Exception:  # the loop raises the same error when it reads the metrics
                pass
            self._times.put(time.perf_counter())
