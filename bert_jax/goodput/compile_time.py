"""Measure the time that the current thread spends tracing and compiling programs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import jax

# JAX reports the end of each of these compilation stages. Reading a program from the cache on disk
# is part of the last stage.
_STAGES = {
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
}


class CompileTime:
    """Reports the time that JAX spends tracing and compiling in a `with` block.

    Only work in the thread that enters the block counts. Tracing a function includes tracing the
    functions that it calls, for which JAX also reports separate times; no time is counted twice.

    Args:
      add: called with the number of seconds that have just passed and were not counted before.
      clock: returns the time in seconds, measured from any fixed point in time.
    """

    def __init__(self, add: Callable[[float], None], clock: Callable[[], float]) -> None:
        self._add = add
        self._clock = clock
        self._thread = 0
        # Intervals already counted that may lie within the interval of an outer function, which is
        # reported later.
        self._counted: list[tuple[float, float]] = []

    def __enter__(self) -> CompileTime:
        self._thread = threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_duration)

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event not in _STAGES or threading.get_ident() != self._thread:
            return
        end = self._clock()
        start = end - duration_secs
        within = 0.0
        while self._counted and self._counted[-1][1] > start:
            inner_start, inner_end = self._counted.pop()
            within += inner_end - max(start, inner_start)
            start = min(start, inner_start)
        self._counted.append((start, end))
        # Outer functions end later than inner ones, so older intervals are needed only while an
        # outer function may still be running.
        del self._counted[:-1000]
        self._add(max(0.0, duration_secs - within))
