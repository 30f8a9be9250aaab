"""How many programs a command had compiled, and what that took."""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any

import jax

# What JAX calls the steps that are compiled for every length of rows.
_STEPS = {"jit(train_step)": "to train", "jit(prediction_step)": "to predict"}
_COMPILED = "/jax/core/compile/backend_compile_duration"
_KEPT = "/jax/compilation_cache/cache_hits"


class Compilations:
    """Counts, while it is entered, what JAX compiles or finds in its cache on disk.

    seconds: of XLA, or of reading from the cache, for all programs; tracing is not among them.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._programs: Counter[str] = Counter()
        self._kept, self._found = 0, False

    def __enter__(self) -> Compilations:
        jax.monitoring.register_event_duration_secs_listener(self._took)
        jax.monitoring.register_event_listener(self._happened)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._took)
        jax.monitoring.unregister_event_listener(self._happened)

    def lines(self) -> list[str]:
        """A line for people, of the steps' programs and the seconds of all; none without any."""
        if not self._programs:
            return []
        told = [f"{self._programs[name]} {what}" for name, what in _STEPS.items()]
        kept = f" ({self._kept} of them from the cache)" * bool(self._kept)
        return [f"programs   {', '.join(told)}{kept}; compiling took {self.seconds:.1f} s in all"]

    def _happened(self, event: str, **_: Any) -> None:
        self._found = self._found or event == _KEPT

    def _took(self, event: str, duration_secs: float, **about: Any) -> None:
        if event != _COMPILED:
            return
        self.seconds += duration_secs
        if (name := about.get("fun_name")) in _STEPS:
            self._programs[name] += 1
            self._kept += self._found
        self._found = False
