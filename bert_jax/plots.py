"""Escape text for Matplotlib, and convert figures to PNG images."""

from __future__ import annotations

import io

from matplotlib.figure import Figure


def png_of(figure: Figure) -> bytes:
    """Return a figure as a PNG image."""
    image = io.BytesIO()
    figure.savefig(image, format="png")
    return image.getvalue()


def plain(text: str) -> str:
    """Escape text so that Matplotlib shows it unchanged, even if it contains dollar signs."""
    return text.replace("$", r"\$")
