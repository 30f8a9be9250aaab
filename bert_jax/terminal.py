"""Write lines, progress and logs to a terminal or another text stream."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Literal, TextIO, TypeVar, get_args

# Update intervals, in seconds, for a progress line and for a line that shows the elapsed time.
_PROGRESS_ON_A_TERMINAL, _PROGRESS_IN_A_FILE = 0.2, 10.0
_ELAPSED_ON_A_TERMINAL, _ELAPSED_IN_A_FILE = 1.0, 60.0


Reported = TypeVar("Reported")
Color = Literal["red", "green", "yellow", "blue", "magenta", "cyan"]
_COLOR_CODES: dict[Color, int] = {name: code for code, name in enumerate(get_args(Color), start=31)}


def shows_color(stream: TextIO) -> bool:
    """Return whether to write colors: to a terminal, unless NO_COLOR is set in the environment."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def colored(text: str, color: Color) -> str:
    """Return the text with the ANSI escape codes for a color."""
    return f"\x1b[{_COLOR_CODES[color]}m{text}\x1b[0m"


def write_line(line: str, stream: TextIO) -> None:
    """Write a line, or discard all further output to the stream if its reader has exited.

    The reader may be a `tee` process that received the same Ctrl-C, or a terminal that was
    disconnected. In either case, a run must still save its checkpoint.

    Raises:
      OSError: the line cannot be written for any other reason.
    """
    try:
        print(line, file=stream, flush=True)
    except OSError as error:
        if not reader_exited(error):
            raise
        discard_output(stream)


def reader_exited(error: OSError) -> bool:
    """Return whether a write failed because a pipe has no reader or a terminal was disconnected."""
    return error.errno in (errno.EPIPE, errno.EIO)


def discard_output(stream: TextIO) -> None:
    """Redirect all further output of a stream to the null device."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def use_utf8(stream: TextIO) -> None:
    r"""Make a stream encode all text as UTF-8, which JSON requires regardless of the locale.

    An undecodable byte in a file name is written as an escape that is also valid in JSON, such as
    "\udcff".
    """
    if isinstance(stream, TextIOWrapper):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def format_clock(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as "1:02:03"."""
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


class ProgressLine:
    """A progress line that always shows the most recent text.

    On a terminal, a single line is overwritten at most every 0.2 s. A file gets a new line at most
    every 10 s.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._interval = _PROGRESS_ON_A_TERMINAL if self._terminal else _PROGRESS_IN_A_FILE
        self._shown_at = time.monotonic()
        self._latest: Callable[[], str] | None = None

    def show(self, text: Callable[[], str]) -> None:
        """Write `text()`, unless the last update was too recent."""
        self._latest = text
        if time.monotonic() - self._shown_at >= self._interval:
            self._shown_at = time.monotonic()
            self._write("")

    def show_text(self, text: str) -> None:
        """Show a text that has already been computed; see `show`."""
        self.show(lambda: text)

    def end(self) -> None:
        """Leave the latest text on the terminal, so that the next `show` starts a new line."""
        if self._terminal and self._latest is not None:
            self._write("\n")
        self._latest = None
        self._shown_at = time.monotonic()

    def _write(self, end: str) -> None:
        assert self._latest is not None
        if self._terminal:
            print(f"\r{self._latest()}\x1b[K", end=end, file=self._stream, flush=True)
        else:
            print(self._latest(), file=self._stream, flush=True)


class StatusLine:
    """A temporary line at the bottom of a terminal, which any other output replaces.

    The line is never written to a file. Use it as a context manager, which removes the line at the
    end.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._shown_at: float | None = None

    def show(self, text: str) -> None:
        """Show a text, cut off at the terminal's width, unless the last update was too recent."""
        now, last = time.monotonic(), self._shown_at
        if self._terminal and (last is None or now - last >= _PROGRESS_ON_A_TERMINAL):
            self._shown_at = now
            self._write(text[: shutil.get_terminal_size().columns - 1])

    def clear(self) -> None:
        """Remove the line; the next text is shown at once."""
        if self._shown_at is not None:
            self._shown_at = None
            self._write("")

    def cleared_before(self, write: Callable[[Reported], None]) -> Callable[[Reported], None]:
        """Return a function that removes the line and then calls `write`."""

        def clear_and_write(reported: Reported) -> None:
            self.clear()
            write(reported)

        return clear_and_write

    def __enter__(self) -> StatusLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def _write(self, text: str) -> None:
        print(f"\r{text}\x1b[K", end="", file=self._stream, flush=True)


@contextmanager
def show_elapsed(doing: str, done: str, stream: TextIO) -> Iterator[None]:
    """Show how long a `with` block has been running and, when it ends, how long it took.

    On a terminal, a single line is overwritten every second. A file gets a new line every minute.

    Args:
      doing: the text to show while the block runs, such as "compiling phase1".
      done: the text to show after the block has ended, such as "compiled phase1".
      stream: the stream to write to.
    """
    began = time.perf_counter()
    terminal, ended = stream.isatty(), threading.Event()

    def show(text: str, end: str) -> None:
        seconds = time.perf_counter() - began
        print(f"{text}: {seconds:.0f} s", end=end, file=stream, flush=True)

    def tick() -> None:
        while not ended.wait(_ELAPSED_ON_A_TERMINAL if terminal else _ELAPSED_IN_A_FILE):
            show(doing, "\r" if terminal else "\n")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        show(done, "\n")


def log_to(stream: TextIO) -> None:
    """Log this package's messages and the warnings from all libraries to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_MarkedWarnings())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("bert_jax").setLevel(logging.INFO)
    # Orbax logs the traceback of a failed save in every thread, in addition to raising the error.
    if os.environ.get("BERT_JAX_TRACEBACK") != "1":
        logging.getLogger("absl").addFilter(_has_no_traceback)


class _MarkedWarnings(logging.Formatter):
    """A formatter that prefixes warnings with "warning: " and leaves other messages unchanged."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"warning: {text}" if record.levelno == logging.WARNING else text


def _has_no_traceback(record: logging.LogRecord) -> bool:
    return not record.exc_info
