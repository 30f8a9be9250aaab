"""Provide helpers for the notebooks: import the small model, show tables and style the charts.

The notebooks write only to the folder `work` next to them. Delete it to start over.
"""

from __future__ import annotations

import html
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import jax
import matplotlib as mpl

import bert_jax as bj
from bert_jax.runs.runtime import enable_compilation_cache

DATA = Path("data")
WORK = Path("work")

WORK.mkdir(exist_ok=True)
_NUMBER = re.compile(r"[-+]?[\d.,]+%?")

# Keep compiled programs on disk, so that a notebook runs faster the second time.
enable_compilation_cache()

# Charts have a transparent background and use colors that are readable on white and on black.
_INK = "#777777"
mpl.rcParams.update(
    {
        "figure.figsize": (6.4, 3.2),
        "figure.dpi": 100,
        "figure.facecolor": "none",
        "figure.constrained_layout.use": True,
        "axes.facecolor": "none",
        "axes.edgecolor": _INK,
        "axes.labelcolor": _INK,
        "axes.titlecolor": _INK,
        "axes.titlesize": "medium",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": mpl.cycler(
            color=["#3b7dd8", "#d9622b", "#2f9e5b", "#a35fc4", "#b58900", "#1b9e9e"]
        ),
        "text.color": _INK,
        "xtick.color": _INK,
        "ytick.color": _INK,
        "legend.frameon": False,
    }
)


@dataclass(frozen=True)
class Table:
    """A table that Jupyter displays as HTML and `print` displays as text.

    Attributes:
      columns: the titles of the columns.
      rows: the cells of each row. Columns of numbers are right-aligned.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]

    def __str__(self) -> str:
        cells = [list(map(str, self.columns)), *(list(map(_text, row)) for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        right = self._right_aligned()
        return "\n".join(
            "  ".join(
                cell.rjust(width) if is_right else cell.ljust(width)
                for cell, width, is_right in zip(line, widths, right, strict=True)
            ).rstrip()
            for line in cells
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        right = self._right_aligned()
        head = _row("th", self.columns, right)
        body = "".join(_row("td", map(_text, row), right) for row in self.rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"

    def _right_aligned(self) -> list[bool]:
        columns = list(zip(*self.rows, strict=True))
        return [all(_NUMBER.fullmatch(_text(cell)) for cell in column) for column in columns]


def _text(cell: object) -> str:
    """Format integers with commas and other numbers with three decimals."""
    match cell:
        case bool() | str():
            return str(cell)
        case int():
            return f"{cell:,}"
        case float():
            return f"{cell:.3f}"
        case _:
            return str(cell)


def _row(tag: str, cells: Iterable[str], right: Sequence[bool]) -> str:
    parts = (
        f'<{tag} style="text-align: {"right" if is_right else "left"}; padding: 0.2em 1em 0.2em 0">'
        f"{html.escape(cell)}</{tag}>"
        for cell, is_right in zip(cells, right, strict=True)
    )
    return f"<tr>{''.join(parts)}</tr>"


def environment() -> Table:
    """Return a table of the software and hardware that the notebook uses."""
    rows = [
        ("Python", platform.python_version()),
        ("bert_jax", bj.__version__),
        *((name, version(name)) for name in ("jax", "flax", "numpy")),
        ("devices", ", ".join(device.device_kind for device in jax.devices())),
        ("CPU cores", str(os.cpu_count())),
    ]
    return Table(["environment", "version or number"], rows)
