"""Write progress lines to stderr, and results to standard output or a file."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO, assert_never

from bert_jax.files import NotWritten, full_disk
from bert_jax.inference.input_stream import Input
from bert_jax.training.reports import EvaluationReport, Message, Report, TrainReport

_SECONDS_ON_A_TERMINAL = 0.2
_SECONDS_IN_A_FILE = 10.0


def console_report(report: Report) -> None:
    """Print a message to standard output, and training progress and evaluations to stderr."""
    match report:
        case Message():
            _print_line(str(report), sys.stdout)
        case TrainReport() | EvaluationReport():
            _print_line(str(report), sys.stderr)
        case _:
            assert_never(report)


def _print_line(line: str, stream: TextIO) -> None:
    try:
        print(line, file=stream, flush=True)
    except OSError as error:
        # The reader has exited: a `tee` that received the same Ctrl-C, or the terminal of a
        # dropped connection. The checkpoint must still be saved; the log has the entries.
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


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


def speak_utf8() -> None:
    """Has standard output take any text: JSON is UTF-8, whatever the locale says."""
    # What a file's name holds that is no Unicode text may stand in an error: \udcff is JSON's way
    # to write it as well.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")


@contextmanager
def output_to(path: str | None, source: Input) -> Iterator[TextIO]:
    """Yields what to write to: standard output, or a file that appears when all is written.

    Until then it is beside it as PATH.partial, and stays there if something fails. ValueError if
    that would write over what is read.
    """
    if path in (None, "-"):
        speak_utf8()
        yield sys.stdout
        return
    target = Path(path)
    source.check_stays(target)
    if target.exists() and not target.is_file():  # a device or a pipe, which is not replaced
        with open(target, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        return
    if not target.parent.is_dir():
        raise ValueError(f"{path}: there is no directory {target.parent} to write it to")
    partial = target.with_name(f"{target.name}.partial")
    source.check_stays(partial)
    try:
        with open(partial, "w", encoding="utf-8", errors="backslashreplace") as file:
            yield file
        os.replace(partial, target)
    except OSError as error:
        cause = full_disk(error)
        if not cause:
            raise
        raise NotWritten(
            target,
            f"{cause}. {partial} holds the results so far. Free some space, and run the same "
            "command again",
        ) from error
