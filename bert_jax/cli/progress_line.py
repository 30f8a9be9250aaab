"""Progress of a long verb on stderr: one line written over, or now and then a line of its own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

_SECONDS_ON_A_TERMINAL = 0.2
_SECONDS_IN_A_FILE = 10.0


class ProgressLine:
    """Shows the newest of many texts: over the last one on a terminal, else every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._interval = _SECONDS_ON_A_TERMINAL if self._terminal else _SECONDS_IN_A_FILE
        self._shown_at = time.monotonic()
        self._newest: Callable[[], str] | None = None

    def show(self, text: Callable[[], str]) -> None:
        """Shows `text()` if it is time to."""
        self._newest = text
        if time.monotonic() - self._shown_at >= self._interval:
            self._shown_at = time.monotonic()
            self._print("")

    def end(self) -> None:
        """Leaves the newest text on the terminal."""
        if self._terminal and self._newest is not None:
            self._print("\n")
        self._newest = None

    def _print(self, end: str) -> None:
        assert self._newest is not None
        if self._terminal:
            print(f"\r{self._newest()}\x1b[K", end=end, file=sys.stderr, flush=True)
        else:
            print(self._newest(), file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: "1:02:03"."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"
