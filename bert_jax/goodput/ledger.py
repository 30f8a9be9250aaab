"""Measure where a run's time goes, and write it to a file that stays valid however the run ends."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.files import NotWritten
from bert_jax.goodput.account import Account, Goodput
from bert_jax.goodput.categories import COMPILATION, INITIALIZATION, PRODUCTIVE, Activity
from bert_jax.goodput.compile_time import CompileTime
from bert_jax.goodput.entries import GOODPUT_NAME, EndState, Entry, EntryFile, Event, read_entries
from bert_jax.processes import command_began

logger = logging.getLogger(__name__)

# The interval between entries is this number of seconds or this fraction of the time since the
# start, whichever is longer. A run of several months then writes thousands of lines instead of
# millions.
_ENTRY_SECONDS, _ENTRY_FRACTION = 5.0, 0.005
_POLL_SECONDS = 1.0
SET_ASIDE_NAME = "goodput-set-aside.jsonl"


class Ledger:
    """Accounts for the time of one start of a run. At any time, one activity is being timed.

    A ledger measures from its creation on, but writes only after `open`. Only the first process of
    a run opens its ledger. In all other processes, the ledger has no effect.

    Entries are written by a thread, and by `flush` at points where the number of steps must be
    exact. Recording an activity or a step writes nothing, and takes about a microsecond. If the
    ledger cannot be written, it is abandoned with a warning, since training does not depend on it.

    Attributes:
      step: the number of optimizer steps completed.
      state: how the run ended, as passed to `finish`; None until then.

    Args:
      clock: returns the time in seconds, measured from any fixed point in time.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self.step = 0
        self._clock = clock
        self._epoch = time.time() - clock()  # The time of the clock's zero, in seconds since 1970.
        began = command_began()
        now = clock()
        self._began = now if began is None else min(now, began - self._epoch)
        self._since = self._written = self._began
        self._activity: Activity = INITIALIZATION
        self._seconds: dict[Activity, float] = {}
        self._tokens = self._positions = self._flops = 0.0
        self._lock = threading.RLock()
        self._file: EntryFile | None = None
        self._account = Account()
        self._closed = threading.Event()
        self.state: EndState | None = None

    @property
    def activity(self) -> Activity:
        """The current activity."""
        return self._activity

    def switch(self, activity: Activity) -> Activity:
        """Begin an activity, and return the previous one."""
        with self._lock:
            self._measure()
            former, self._activity = self._activity, activity
        return former

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time in a `with` block as `activity`."""
        former = self.switch(activity)
        try:
            yield
        finally:
            self.switch(former)

    def move(self, seconds: float, source: Activity, target: Activity) -> None:
        """Move time that has passed from one activity to another."""
        if source != target:
            with self._lock:
                self._seconds[source] = self._seconds.get(source, 0.0) - seconds
                self._seconds[target] = self._seconds.get(target, 0.0) + seconds

    def trained(self, *, tokens: float, positions: float, flops: float) -> None:
        """Add the training done since the last call; see `Entry`."""
        with self._lock:
            self._tokens += tokens
            self._positions += positions
            self._flops += flops

    @contextmanager
    def open(
        self,
        work_dir: Path,
        *,
        step: int,
        total_steps: int,
        peak_flops: float | None,
        devices: str,
        processes: int,
        explain: Callable[[BaseException], str | None] = lambda error: None,
    ) -> Iterator[None]:
        """Write entries to the work directory during a `with` block.

        The last entry records how the run ended: the state that was passed to `finish`, or the
        error that ended the block.

        Args:
          work_dir: the run's work directory, which no other run may write to.
          step: the step that the run resumes from; 0 if it starts from scratch.
          total_steps: the number of optimizer steps in the whole run.
          peak_flops: the peak FLOP/s of all devices together; None if unknown.
          devices: the number and kind of devices.
          processes: the number of processes.
          explain: returns a message for an error that ends the block, or None to record the error's
            type and its own message.
        """
        self.step = step
        self._open(work_dir / GOODPUT_NAME)
        start = {
            "began": self._epoch + self._began,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processes": processes,
            "devices": devices,
            "total_steps": total_steps,
            "peak_flops": peak_flops,
        }
        self._write("start", **start)
        thread = threading.Thread(target=self._write_regularly, daemon=True)
        thread.start()
        state: EndState | None = None
        error: str | None = None
        try:
            with CompileTime(self._compiled, self._clock):
                yield
            state = self.state
        except BaseException as raised:
            message = explain(raised) or f"{type(raised).__name__}: {raised}"
            state, error = "failed", message[:1000]
            raise
        finally:
            self._closed.set()
            thread.join()
            self._write("end", state=state or "stopped", error=error)
            if self._file is not None:
                self._file.close()
                self._file = None

    def finish(self, state: EndState) -> None:
        """Set the state that the last entry will record; by default, it is "stopped"."""
        self.state = state

    def flush(self) -> None:
        """Write an entry, so that the time of the steps up to `step` is known exactly."""
        self._write("progress")

    def rewind(self, step: int) -> None:
        """Record that the run has gone back to the checkpoint at `step` without a restart."""
        self.flush()
        self.step = step
        self._write("rewind")

    def goodput(self) -> Goodput | None:
        """Return the sums over all starts, as of the last entry; None if there is none."""
        with self._lock:
            return self._account.goodput()

    def fraction(self) -> float | None:
        """Return the goodput over all starts up to now; None if the ledger is not open."""
        with self._lock:
            goodput = self._account.goodput()
            if self._file is None or goodput is None:
                return None
            self._measure()
            total = goodput.total_seconds + sum(self._seconds.values())
            return (goodput.seconds[PRODUCTIVE] + self._seconds.get(PRODUCTIVE, 0.0)) / total

    def _open(self, path: Path) -> None:
        try:
            self._file = EntryFile(path)
            self._account = Account(read_entries(path))
        except ValueError as error:
            set_aside = path.with_name(SET_ASIDE_NAME)
            logger.warning("%s\nThe file was renamed to %s.", error, set_aside.name)
            assert self._file is not None
            self._file.close()
            try:
                path.replace(set_aside)
                self._file, self._account = EntryFile(path), Account()
            except OSError as failed:
                self._give_up(failed)
        except OSError as error:
            self._give_up(error)

    def _compiled(self, seconds: float) -> None:
        with self._lock:
            self.move(seconds, self._activity, COMPILATION)

    def _measure(self) -> None:
        now = self._clock()
        elapsed, self._since = now - self._since, now
        self._seconds[self._activity] = self._seconds.get(self._activity, 0.0) + elapsed

    def _write_regularly(self) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            age = self._clock() - self._began
            if self._clock() - self._written >= max(_ENTRY_SECONDS, _ENTRY_FRACTION * age):
                self.flush()

    def _write(self, event: Event, **details: object) -> None:
        with self._lock:
            if self._file is None:
                return
            self._measure()
            self._written = self._since
            entry = Entry(
                event,
                self._epoch + self._since,
                self.step,
                self._seconds,
                self._tokens,
                self._positions,
                self._flops,
                **details,  # type: ignore[arg-type]
            )
            self._seconds = {}
            self._tokens = self._positions = self._flops = 0.0
            try:
                self._file.append(entry)
                self._account.add(entry)
            except (NotWritten, ValueError) as error:
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        logger.warning("%s. Training continues without a goodput ledger.", error)
        if self._file is not None:
            self._file.close()
        self._file = None
