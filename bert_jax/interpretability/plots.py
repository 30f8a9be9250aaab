"""Plot a matrix as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bert_jax.plots import new_figure, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MAX_NUMBERED_CELLS = 400
_DARK = 0.6  # above this value, a cell is so dark that its number must be white


def heat_map(
    values: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    row_title: str,
    column_title: str,
    value_title: str,
) -> Figure:
    """Draw a matrix of values from 0 to 1 as colored cells.

    If there are few enough cells, each one also shows its value.

    Args:
      values: float64 [rows, columns].
      rows: the names of the rows, which are drawn from top to bottom.
      columns: the names of the columns.
      row_title: the title of the vertical axis.
      column_title: the title of the horizontal axis.
      value_title: the label of the color bar, which explains the values.
    """
    size = (2.6 + 0.42 * len(columns), 1.6 + 0.36 * len(rows))
    figure = new_figure(min(max(size[0], 5), 14), min(max(size[1], 3), 14))
    axes = figure.subplots()
    image = axes.imshow(values, vmin=0, vmax=1, cmap="Blues", aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=90 if len(columns) > 14 else 0)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(plain(column_title))
    axes.set_ylabel(plain(row_title))
    if values.size <= _MAX_NUMBERED_CELLS:
        for row, column in np.ndindex(*values.shape):
            value = float(values[row, column])
            color = "white" if value > _DARK else "black"
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=8
            )
    figure.colorbar(image, label=plain(value_title))
    return figure
