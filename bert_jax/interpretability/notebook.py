"""Build the HTML that notebooks display: tables, shaded words and plots.

The HTML needs no scripts, style sheets or network access. It uses the notebook's own text color,
and its backgrounds are translucent, so that it is readable in light and dark themes.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from typing import NamedTuple

# The hues of positive and negative shades, which people with color blindness can tell apart.
_POSITIVE, _NEGATIVE = 215, 28
_MAX_OPACITY = 0.6
_CELL = "padding: .15em .6em; white-space: nowrap; text-align: "


class Shaded(NamedTuple):
    """Text with a colored background.

    Attributes:
      text: the text, without HTML escapes.
      strength: how strong the color is, from -1 (orange) through 0 (none) to 1 (blue).
      title: a tooltip that appears when the mouse hovers over the text.
    """

    text: str
    strength: float = 0.0
    title: str = ""


Cell = str | Shaded


def table(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return an HTML table; the first cell of each row is the row's header."""
    titles = "".join(
        f'<th scope="col" style="{_CELL}{"right" if number else "left"}">{html.escape(name)}</th>'
        for number, name in enumerate(header)
    )
    body = "".join(f"<tr>{''.join(_cells(row))}</tr>" for row in rows)
    return (
        '<div style="overflow-x: auto"><table style="border-collapse: collapse">'
        f"<thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def shaded_table(
    header: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float]]
) -> str:
    """Return an HTML table of values from 0 to 1; the color of each cell shows its value.

    Args:
      header: the titles of the columns, starting with the title for the column of names.
      names: the names of the rows.
      values: [rows, columns].
    """
    rows: list[list[Cell]] = [
        [name, *(Shaded(f"{value:.2f}", value) for value in row)]
        for name, row in zip(names, values, strict=True)
    ]
    return table(header, rows)


def _cells(row: Sequence[Cell]) -> Iterable[str]:
    for number, cell in enumerate(row):
        shaded = cell if isinstance(cell, Shaded) else Shaded(cell)
        text, style = html.escape(shaded.text), f"{_background(shaded)}{_CELL}"
        if number:
            yield f'<td style="{style}right"{_title(shaded)}>{text}</td>'
        else:
            yield f'<th scope="row" style="{style}left"{_title(shaded)}>{text}</th>'


def words(shown: Iterable[Shaded]) -> str:
    """Return a paragraph of words with colored backgrounds."""
    spans = (
        f'<span style="{_background(word)}padding: .2em .25em; border-radius: 4px"'
        f"{_title(word)}>{html.escape(word.text)}</span>"
        for word in shown
    )
    return f'<p style="line-height: 2.2">{" ".join(spans)}</p>'


def paragraph(text: str) -> str:
    """Return a paragraph of plain text."""
    return f"<p>{html.escape(text)}</p>"


def folded(title: str, content: str) -> str:
    """Return HTML that is hidden until the reader opens it.

    Args:
      title: the text to click on.
      content: the HTML to hide.
    """
    return f"<details><summary>{html.escape(title)}</summary>{content}</details>"


def picture(png: bytes, description: str) -> str:
    """Return an HTML image with the PNG data embedded in it."""
    source = base64.b64encode(png).decode("ascii")
    return (
        f'<img src="data:image/png;base64,{source}" alt="{html.escape(description)}" '
        'style="max-width: 100%">'
    )


def _background(shaded: Shaded) -> str:
    opacity = _MAX_OPACITY * min(abs(shaded.strength), 1.0)
    if opacity < 0.005:
        return ""
    hue = _POSITIVE if shaded.strength > 0 else _NEGATIVE
    return f"background: hsl({hue} 90% 50% / {opacity:.2f}); "


def _title(shaded: Shaded) -> str:
    return f' title="{html.escape(shaded.title)}"' if shaded.title else ""
