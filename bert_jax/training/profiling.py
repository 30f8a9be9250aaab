"""A trace of a few steps, for XProf: what the devices did, and what they waited for."""

from __future__ import annotations

import logging
from pathlib import Path
from types import TracebackType
from typing import Any

import jax

logger = logging.getLogger(__name__)

# Compiling, filling queues and growing pools are not what a step costs.
SKIPPED = 10


class StepProfiler:
    """Traces `count` steps into `directory`, those after the first ten of a start; 0 traces none.

    Every process writes what its own devices did. A run that ends sooner leaves what there is.
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
        """To be called with what the step before gives, which is waited for at either end."""
        if self._count and self._steps == SKIPPED:
            jax.block_until_ready(state)
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        if self._tracing and self._steps == SKIPPED + self._count:
            jax.block_until_ready(state)
            self._stop()
        self._steps += 1

    def _stop(self) -> None:
        if not self._tracing:
            return
        self._tracing = False
        jax.profiler.stop_trace()
        traced = min(self._steps - SKIPPED, self._count)
        logger.info("traced %d steps into %s (for XProf)", traced, self._directory)
