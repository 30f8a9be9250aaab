"""Read and append to a goodput ledger, a file of JSON lines that records how a run spends time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from bert_jax.files import writing
from bert_jax.goodput.categories import ACTIVITIES, Activity
from bert_jax.json_files import parse_json

GOODPUT_NAME = "goodput.jsonl"
Event = Literal["start", "progress", "rewind", "end"]
EndState = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class Entry:
    """A line of a ledger. Amounts are counted since the previous line of the same start.

    A start lasts from when a run is started or resumed until its processes end.

    Attributes:
      event: "start" for the first line of a start; "rewind" if the run goes back to the checkpoint
        at `step` without a restart; "end" for the last line, which a killed process does not write.
      time: the time at which the line was written, in seconds since 1970.
      step: the number of optimizer steps completed; for a start, the step that it resumes from.
      seconds: the time spent on each activity. A number may be negative, since time is moved from
        another activity to "program_startup" once a compilation is complete.
      tokens: the number of real tokens trained on.
      positions: the number of positions in the batches, including padding.
      flops: the model FLOPs.
      began: for a start, the time at which it began, in seconds since 1970.
      host: for a start, the name of the machine.
      pid: for a start, the process ID of the run's first process.
      processes: for a start, the number of processes.
      devices: for a start, the number and kind of devices.
      total_steps: for a start, the number of optimizer steps in the whole run.
      peak_flops: for a start, the peak FLOP/s of all devices together; None if unknown.
      state: for an end, how the run ended.
      error: for an end, the error that ended the run.
    """

    event: Event
    time: float
    step: int
    seconds: Mapping[Activity, float] = field(default_factory=dict)
    tokens: float = 0.0
    positions: float = 0.0
    flops: float = 0.0
    began: float | None = None
    host: str | None = None
    pid: int | None = None
    processes: int | None = None
    devices: str | None = None
    total_steps: int | None = None
    peak_flops: float | None = None
    state: EndState | None = None
    error: str | None = None

    def line(self) -> bytes:
        """Return the entry as a line of JSON, without values that are empty."""
        values = {name: value for name, value in vars(self).items() if value or name == "step"}
        values["time"] = round(self.time, 3)
        values["seconds"] = {
            name: round(seconds, 6) for name, seconds in self.seconds.items() if seconds
        }
        return json.dumps(values).encode() + b"\n"


def read_entries(path: Path) -> list[Entry]:
    """Read the entries in the order in which they were written.

    An unterminated last line, which a killed process may leave behind, is ignored.

    Raises:
      ValueError: a line is not an entry; the message gives its number.
      OSError: the file cannot be read.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    return [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]


def _parse(line: bytes, where: str) -> Entry:
    try:
        values: dict[str, Any] = parse_json(line.decode())
        entry = Entry(**values)
        _check(entry)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where}: this is not an entry of a goodput ledger ({error}). Remove the file to "
            "start a new ledger; training does not depend on it."
        ) from error
    return entry


def _check(entry: Entry) -> None:
    """Raise ValueError or TypeError if an entry's values are not of the right kind."""
    if entry.event not in get_args(Event) or not set(entry.seconds) <= set(ACTIVITIES):
        raise ValueError("`event` or an activity is unknown")
    counts = entry.tokens, entry.positions, entry.flops
    if (entry.began is None) != (entry.event != "start"):
        raise ValueError("`began` must be set in a start, and only there")
    times = entry.time, entry.began or 0.0, *entry.seconds.values()
    for number in (*times, *counts, entry.peak_flops or 0.0):
        if type(number) not in (int, float) or not math.isfinite(number):
            raise ValueError("a value is not a finite number")
    if type(entry.step) is not int or type(entry.total_steps or 0) is not int:
        raise ValueError("a step is not a whole number")
    if (entry.state is not None) != (entry.event == "end"):
        raise ValueError("`state` must be set in an end, and only there")
    if entry.state is not None and entry.state not in get_args(EndState):
        raise ValueError("its state is unknown")


class EntryFile:
    """A file of entries that is open for appending.

    Args:
      path: the file. An unterminated last line is removed.

    Raises:
      NotWritten: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
            self._remove_torn_line()

    def _remove_torn_line(self) -> None:
        with open(self._descriptor, "rb", closefd=False) as file:
            content = file.read()
        complete = content.rfind(b"\n") + 1
        if complete < len(content):
            os.ftruncate(self._descriptor, complete)

    def append(self, entry: Entry) -> None:
        """Append a line.

        Raises:
          NotWritten: the line cannot be written, for example because the disk is full.
        """
        line = entry.line()
        with writing(self._path):
            while line:  # The system may write only a part of the line at once.
                line = line[os.write(self._descriptor, line) :]

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)
