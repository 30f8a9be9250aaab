"""Trace a few steps for XProf, which shows when the devices are busy and when they wait."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

logger = logging.getLogger(__name__)

# The first steps are not typical, since they also compile, fill queues and grow memory pools.
SKIPPED_STEPS = 10


class StepProfiler:
    """Traces a few steps, skipping the first ten after the run starts or resumes.

    Every process traces its own devices. If the run ends early, the steps traced so far are kept.

    Args:
      directory: the directory to write the trace to.
      count: the number of steps to trace; 0 for none.
    """

    def __init__(self, directory: Path, count: int):
        self._directory = directory
        self._count = count
        self._steps = 0
        self._tracing = False

    def __enter__(self) -> StepProfiler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def before_step(self, state: Any) -> None:
        """Start or stop the trace if due, after waiting for the previous step to finish."""
        if self._count and self._steps == SKIPPED_STEPS:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        if self._tracing and self._steps == SKIPPED_STEPS + self._count:
            jax.block_until_ready(state)
            self._stop()
        self._steps += 1

    def _stop(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        traced = min(self._steps - SKIPPED_STEPS, self._count)
        logger.info("traced %d steps into %s (for XProf)", traced, self._directory)
