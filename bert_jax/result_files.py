"""Define an interface for results that can be plotted, and write results to files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from bert_jax.files import write_file
from bert_jax.local_paths import make_directory


class SavedResult(Protocol):
    """A result that prints as a table and can be saved."""

    def __str__(self) -> str:
        """Return the lines of the table."""

    def save(self, path: str | Path) -> None:
        """Write the result to a JSON file."""


@runtime_checkable
class PlottedResult(SavedResult, Protocol):
    """A result that can also be plotted."""

    def plot(self, path: str | Path) -> None:
        """Plot the result as a PNG image."""


def write_plot(result: SavedResult, path: str | Path) -> None:
    """Plot a result as a PNG image; the result must be a `PlottedResult`."""
    assert isinstance(result, PlottedResult)
    result.plot(path)


def write_result(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically, creating its directory if necessary.

    Raises:
      ValueError: the path has a scheme, such as gs://.
      NotWritten: the file cannot be written.
    """
    file = Path(path)
    make_directory(file.parent)
    write_file(file, content)


def write_json(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write values to a JSON file; see `write_result`."""
    write_result(path, json.dumps(values, indent=1) + "\n")
