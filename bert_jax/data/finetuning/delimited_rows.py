"""Rows of TSV and CSV files: their cells by the name or the number of a column."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.data.finetuning.file_lines import MAX_LINE_BYTES, file_lines
from bert_jax.data.finetuning.table_format import TableFormat

LONE_RETURN = (
    "a carriage return (CR) without a line feed; expected lines that end with a line feed. "
    r"Convert the file, for example with `tr '\r' '\n'`"
)


def delimited_rows(
    path: Path, form: TableFormat, names: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yields where each row stands, "file:line", and its cells of the columns `names`.

    A row that ends before a column gives the cells before.

    Raises:
        ValueError: there is no such column, the file is empty or not of its kind, or a row is
            longer than the first line; names file and line.
    """
    cells = delimited_cells(path, form)
    first = next(cells, None)
    if first is None:
        raise ValueError(f"{path} is empty; expected at least one example")
    width = len(first[1])
    if form.header:
        indices = [_index_by_name(name, first[1], form, path) for name in names]
    else:
        indices = [_index_by_number(name, first, form, path) for name in names]
        cells = itertools.chain([first], cells)
    for place, row in cells:
        if len(row) > width:
            if width == 1 and (advice := other_form(first[1], form)):
                raise ValueError(
                    f"{place}: {len(row)} columns, but the first line has one, "
                    f"{first[1][0][:80]!r}. {advice}"
                )
            quoted = f'put a text that holds "{form.delimiter}" between quotes ("...")'
            advice = quoted if form.kind == "csv" else "a text cannot hold tabs"
            raise ValueError(f"{place}: {len(row)} columns, the first line has {width}: {advice}")
        values: list[str] = []
        for index in indices:
            if index >= len(row):
                break
            values.append(row[index])
        yield place, values


def _index_by_name(name: str, header: Sequence[str], form: TableFormat, path: Path) -> int:
    if header.count(name) == 1:
        return header.index(name)
    found = ", ".join(repr(cell[:40]) for cell in header[:20]) or "none"
    problem = f"{header.count(name)} columns are" if name in header else "no column is"
    problem = f"{path}:1: {problem} named {name!r}; the line's columns are {found}."
    if advice := other_form(header, form):
        raise ValueError(f"{problem} {advice}")
    raise ValueError(
        f"{problem} Name a column {name!r} in the file, in a line before this one if this is an "
        f"example. For a new run you can instead set the config's key that is {name!r} to one of "
        "these columns, or set form.header=False and columns by number."
    )


def other_form(first: Sequence[str], form: TableFormat) -> str:
    """Return advice if the first line seems to be of another format, "" if not."""
    if first[0].lstrip().startswith("{"):
        return 'If the file is JSON Lines, set form.kind="jsonl".'
    if len(first) > 1:
        return ""
    keys = {
        "\t": ("tabs", 'form.kind="tsv"'),
        ",": ("commas", 'form.kind="csv"' if form.kind == "tsv" else 'form.delimiter=","'),
        ";": ("semicolons", 'form.kind="csv" and ' * (form.kind == "tsv") + 'form.delimiter=";"'),
    }
    advice = [
        f"If {what} separate the columns, set {key}."
        for sign, (what, key) in keys.items()
        if sign in first[0]
    ]
    return " ".join(advice)


def _index_by_number(name: str, first: tuple[str, list[str]], form: TableFormat, path: Path) -> int:
    if not (name.isascii() and name.isdigit()):
        raise ValueError(
            f"{path}: column {name!r} is asked for by name, but header is False; give its number, "
            "'0' for the first, or say header=True if the first line names the columns"
        )
    place, row = first
    if int(name) >= len(row):  # as in every row, of which none is longer than the first
        there = f"'0' to '{len(row) - 1}'" if len(row) > 1 else "only '0'"
        problem = f"{place}: no column {name!r}; the line's columns are {there}."
        if advice := other_form(row, form):
            raise ValueError(f"{problem} {advice}")
        raise ValueError(
            f"{problem} Fix the line, or for a new run set the config's key that is {name!r} to "
            "one of these columns."
        )
    return int(name)


def delimited_cells(path: Path, form: TableFormat) -> Iterator[tuple[str, list[str]]]:
    """Yields where each line that is not empty stands, "file:line", and all its cells.

    Raises:
        ValueError: as `delimited_rows`, where the file is not of its kind.
    """
    return _tsv_cells(path) if form.kind == "tsv" else _csv_cells(path, form.delimiter)


def _tsv_cells(path: Path) -> Iterator[tuple[str, list[str]]]:
    empty = 0  # lines that wait for another: at the end of a file they are no rows
    for number, line in enumerate(file_lines(path), 1):
        text = line.rstrip("\n").removesuffix("\r")
        if number == 1 and "\r" in text and not line.endswith("\n"):
            raise ValueError(f"{path}:1: {LONE_RETURN}")
        if not text:
            empty += 1
            continue
        for before in range(number - empty, number):
            yield f"{path}:{before}", [""]
        empty = 0
        yield f"{path}:{number}", text.split("\t")


def _csv_cells(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    # A process-wide limit in characters; the default is 131,072.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(file_lines(path), strict=True, delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}:{number}: {_not_csv(error, path)}") from error
        if row:
            yield f"{path}:{number}", row


def _not_csv(error: csv.Error, path: Path) -> str:
    if "new-line character" in str(error):
        return f"{LONE_RETURN}, or put texts that contain one in quotes"
    if "field larger than" in str(error):
        return (
            f"the cell that starts here is longer than {MAX_LINE_BYTES:,} characters. Split its "
            'text, or close its opening quote (")'
        )
    hint = ""
    if "end of data" in str(error):
        hint = ' (a quote, ", opens here that nothing closes)'
    elif next(file_lines(path)).lstrip().startswith("{"):
        hint = '. If the file is JSON Lines, set form.kind="jsonl"'
    return f"not CSV as of RFC 4180: {error}{hint}"
