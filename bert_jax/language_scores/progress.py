"""Describe the progress of a long computation, with its rate and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable

from bert_jax.training.reports import format_duration

OnProgress = Callable[[str], None]


def progress_line(unit: str, on_progress: OnProgress) -> Callable[[int, int], None]:
    """Return a function of (done, total) that reports a line such as "10 of 40 tokens".

    Args:
      unit: the things that are counted, such as "tokens".
      on_progress: called with each line.
    """
    began = time.monotonic()

    def report(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-9)
        left = format_duration((total - done) / rate) if done else "-"
        on_progress(f"{done:,} of {total:,} {unit}, {rate:,.0f} per second, {left} left")

    return report
