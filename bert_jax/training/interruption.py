"""SIGTERM as a request to stop at the next step, which all processes agree upon."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

import jax
from jax.experimental import multihost_utils

TERMINATED = 143  # what a shell reports for a command ended by SIGTERM


class StopRequest:
    """Inside the `with` block SIGTERM no longer kills; ask `stop_now` between steps."""

    def __init__(self) -> None:
        self._signalled = False
        self._previous: signal._HANDLER = signal.SIG_DFL

    def __enter__(self) -> StopRequest:
        # With several processes jax.distributed has its own handler, which tells all of them.
        if jax.process_count() == 1:
            self._previous = signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if jax.process_count() == 1:
            signal.signal(signal.SIGTERM, self._previous)

    def stop_now(self, step: int) -> bool:
        """Whether to save and leave before `step`; the same answer on every process."""
        if jax.process_count() == 1:
            return self._signalled
        return multihost_utils.reached_preemption_sync_point(step)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._signalled = True
