"""Define the interface of results that can be saved and plotted."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable


class SavedResult(Protocol):
    """A result that can be printed as a table and saved."""

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
