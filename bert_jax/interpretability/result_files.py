"""Define an interface for results that can be plotted, and write results to files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from bert_jax.files import write_file
from bert_jax.local_paths import make_directory


class PlottedResult(Protocol):
    """A result that prints as a table and can be plotted and saved."""

    def __str__(self) -> str:
        """Return the lines of the table."""

    def plot(self, path: str | Path) -> None:
        """Plot the result as a PNG image."""

    def save(self, path: str | Path) -> None:
        """Write the result to a JSON file."""


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
