"""Find the line of source code that an instruction of a compiled program comes from."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAME = re.compile(r'^(\d+) "(.*)"$')
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=(\d+) line=(\d+)")
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?")
_FRAME_OF = re.compile(r"\bstack_frame_id=(\d+)")
_PACKAGES = ("bert_jax", "optax")


@dataclass(frozen=True)
class Frame:
    """One call in the stack of calls that created an instruction.

    Attributes:
      path: the path of the file. In the packages bert_jax and optax, it starts with the package;
        in other files, it is absolute.
      function: the qualified name of the function.
      line: the line number.
    """

    path: str
    function: str
    line: int

    @property
    def package(self) -> str | None:
        """The package that contains the file, "bert_jax" or "optax"; None for any other file."""
        package = self.path.split("/")[0]
        return package if package in _PACKAGES else None

    @property
    def module(self) -> str:
        """The name of the file without its directory and suffix."""
        return self.path.rpartition("/")[2].removesuffix(".py")

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.function.rpartition('<locals>.')[2]}"


class StackFrames:
    """The stacks of calls that a compiled program's tables describe.

    Args:
      hlo: the text of a compiled module, which may start with the tables FileNames, FunctionNames,
        FileLocations and StackFrames.
    """

    def __init__(self, hlo: str):
        tables = _tables(hlo)
        names = {
            table: {int(m[1]): m[2] for m in map(_NAME.match, tables.get(table, ())) if m}
            for table in ("FileNames", "FunctionNames")
        }
        locations = {
            int(m[1]): Frame(
                _short(names["FileNames"].get(int(m[2]), "")),
                names["FunctionNames"].get(int(m[3]), ""),
                int(m[4]),
            )
            for m in map(_LOCATION.match, tables.get("FileLocations", ()))
            if m
        }
        rows = [m for m in map(_FRAME.match, tables.get("StackFrames", ())) if m]
        # Some versions of XLA write the parent's number plus 1, which makes the outermost frame
        # look like its own parent. If the number itself is written, no frame looks like its own
        # parent.
        offset = 1 if any(m[1] == m[3] for m in rows) else 0
        self._frames: Mapping[int, tuple[Frame, int]] = {
            int(m[1]): (locations[int(m[2])], int(m[3] or offset) - offset) for m in rows
        }

    def stack(self, attributes: str) -> list[Frame]:
        """Return the calls that created an instruction, with the innermost call first.

        Args:
          attributes: the instruction's attributes in the HLO text. Without a frame number in them,
            the result is empty.
        """
        match = _FRAME_OF.search(attributes)
        number = int(match[1]) if match else 0
        stack: list[Frame] = []
        while number in self._frames and len(stack) <= len(self._frames):
            frame, number = self._frames[number]
            stack.append(frame)
        return stack


def _tables(hlo: str) -> dict[str, Sequence[str]]:
    """Return the rows of the tables before the first computation, keyed by the table's name."""
    tables: dict[str, list[str]] = {}
    rows: list[str] | None = None
    for line in hlo.splitlines():
        if line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
            rows = tables[line] = []
        elif not line:
            rows = None
        elif rows is not None:
            rows.append(line)
        elif line.startswith(("%", "ENTRY")):
            break
    return dict(tables)


def _short(path: str) -> str:
    """Cut off the directories before bert_jax or optax if the file is in one of these packages."""
    path = path.replace("\\", "/")
    for package in _PACKAGES:
        _, separator, inside = path.rpartition(f"/{package}/")
        if separator and "site-packages/" not in inside:
            return f"{package}/{inside}"
    return path
