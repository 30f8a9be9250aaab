"""Build self-contained HTML pages from tables, bar charts and other parts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --page: #fff; --line: #ddd; --mark: #e8f0fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --page: #16181c; --line: #3a3d44; --mark: #22324a; }
}
body { color: var(--ink); background: var(--page); margin: 2em auto; max-width: 72em;
  padding: 0 1em; font: 15px/1.5 system-ui, sans-serif; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25em 0.8em; text-align: right; border-bottom: 1px solid var(--line); }
dt { font-weight: 600; } dd { margin: 0 0 0.5em 0; overflow-wrap: anywhere; }
"""

_BAR_COLOR = "#3b6fb6"
_ROW, _BAR, _WIDTH, _NAME_WIDTH, _VALUE_WIDTH = 20, 14, 640, 150, 70


def html_page(title: str, sections: Sequence[str], more_style: str = "") -> str:
    """Return a page with a title, which is also its first heading.

    Args:
      title: the title as plain text.
      sections: the HTML of the sections.
      more_style: rules to append to the style sheet.
    """
    title = escape(title)
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{title}</title>\n<style>{_STYLE}{more_style}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            *sections,
            "</body>\n</html>\n",
        ]
    )


def check_page_path(path: str | Path, name: str = "path") -> None:
    """Check, before any work is done, that a page can be saved under a given file name.

    Args:
      path: the file name.
      name: the parameter or option that sets it, for the error message.

    Raises:
      ValueError: the file name does not end in .html or .htm.
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{name}={path}: not an HTML file. Use a name that ends in .html.")


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table of plain texts, whose first row is the header."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "\n".join(cells(row, "td") for row in rows[1:])
    return f"<table>\n<thead>{cells(rows[0], 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def bar_chart(bars: Sequence[tuple[str, float]], title: str) -> str:
    """Return a chart with one horizontal bar per row, as an SVG image within the page.

    Args:
      bars: the name and the value of each bar, from top to bottom; values are fractions, shown as
        percentages.
      title: a description of the chart, which browsers show as a tooltip.
    """
    longest = max(value for _, value in bars) or 1.0
    space = _WIDTH - _NAME_WIDTH - _VALUE_WIDTH
    parts = []
    for number, (name, value) in enumerate(bars):
        top, width = number * _ROW, space * value / longest
        middle = f'y="{top + _ROW / 2:g}" dominant-baseline="central" fill="currentColor"'
        parts.append(
            f'<text x="{_NAME_WIDTH - 8}" {middle} text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_NAME_WIDTH}" y="{top + (_ROW - _BAR) / 2:g}" width="{width:.1f}" '
            f'height="{_BAR}" fill="{_BAR_COLOR}"/>'
            f'<text x="{_NAME_WIDTH + width + 6:.1f}" {middle}>{value:.1%}</text>'
        )
    height = _ROW * len(bars)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" role="img" '
        f'font-size="13" style="max-width: 100%"><title>{escape(title)}</title>\n'
        + "\n".join(parts)
        + "\n</svg>"
    )
