"""Write a small file that shows that a run is alive, and what it is doing."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.goodput.categories import Activity
from bert_jax.goodput.ledger import Ledger

logger = logging.getLogger(__name__)

HEARTBEAT_NAME = "heartbeat.json"
# The shortest time between writes of different states, and the longest time between writes of the
# same state.
_LEAST_SECONDS, _MOST_SECONDS = 5.0, 10.0

STATES: dict[Activity, str] = {
    "productive": "training",
    "tpu_initialization": "starting",
    "training_prep": "starting",
    "program_startup": "compiling",
    "data_loading_sync": "waiting for data",
    "unproductive_checkpoint_save_time": "saving",
    "unproductive_checkpoint_restore_time": "restoring",
    "evaluation": "evaluating",
    "downstream": "fine-tuning a checkpoint",
    "data_stall": "waiting for data",
    "other": "training",
}


class Heartbeat:
    """Writes `heartbeat.json` from a thread, even while the run compiles, saves or hangs.

    The file is replaced atomically. It is one JSON object:
      time: when the file was written, in seconds since 1970. A file that is older than half a
        minute means that the process has ended or its machine is unreachable.
      progress_time: when the step or the state last changed. If this time is old but `time` is
        recent, the run is stuck or a step is taking a long time.
      step, total_steps: the number of completed steps, and the number in the whole run.
      state: "starting", "compiling", "training", "evaluating", "saving", "restoring", "waiting for
        data" or "fine-tuning a checkpoint"; at the end "finished", "stopped" or "failed".
      host, pid: the machine and the process that wrote the file, which is the run's first process.

    A file that cannot be written is reported once, and does not stop the run.

    Args:
      ledger: provides the run's step and activity.
      work_dir: the run's work directory.
      total_steps: the number of steps in the whole run.
      clock: returns the time in seconds since 1970.
    """

    def __init__(
        self,
        ledger: Ledger,
        work_dir: Path,
        total_steps: int,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._ledger, self._total_steps, self._clock = ledger, total_steps, clock
        self._path = work_dir / HEARTBEAT_NAME
        self._start = ledger.step
        self._closed = threading.Event()
        self._shown: tuple[int, str] | None = None
        self._progress_time = self._written = 0.0
        self._failed = False

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Keep the file up to date until the block ends, and then write the run's final state."""
        self.beat()
        thread = threading.Thread(target=self._beat_regularly, name="heartbeat", daemon=True)
        thread.start()
        state = "failed"
        try:
            yield
            state = self._ledger.state or "stopped"
        finally:
            self._closed.set()
            thread.join()
            self._write(self._ledger.step, state)

    def beat(self) -> None:
        """Write the file if its content has changed or is old."""
        current = self._ledger.step, self._state()
        changed, age = current != self._shown, self._clock() - self._written
        if changed or age >= _MOST_SECONDS:
            self._write(*current)

    def _state(self) -> str:
        state = STATES[self._ledger.activity]
        # The time of a compilation is only known when it ends.
        compiling = state == "training" and self._ledger.step == self._start
        return "compiling" if compiling else state

    def _beat_regularly(self) -> None:
        while not self._closed.wait(_LEAST_SECONDS):
            self.beat()

    def _write(self, step: int, state: str) -> None:
        now = self._clock()
        if (step, state) != self._shown:
            self._progress_time = now
        self._shown, self._written = (step, state), now
        content = {
            "time": now,
            "progress_time": self._progress_time,
            "step": step,
            "total_steps": self._total_steps,
            "state": state,
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        try:
            write_file(self._path, json.dumps(content) + "\n")
        except OSError as error:
            if not self._failed:
                logger.warning("%s. Training continues without a current heartbeat.", error)
            self._failed = True
