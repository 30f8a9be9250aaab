"""Make figures with Matplotlib, which is imported only when something is drawn.

The import takes half a second, and many commands draw nothing.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure whose parts are laid out automatically.

    Args:
      width: the width in inches.
      height: the height in inches.
    """
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=110, layout="constrained")


def show_percent(axis: Axis, *, decimals: int | None = None) -> None:
    """Label an axis of fractions with percentages.

    Args:
      axis: an x axis or a y axis.
      decimals: the number of decimals. By default, it depends on the range of the axis.
    """
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals))


def png_of(figure: Figure) -> bytes:
    """Return a figure as a PNG image."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def plain(text: str) -> str:
    """Escape text so that Matplotlib shows it unchanged, even if it contains dollar signs."""
    return text.replace("$", r"\$")
