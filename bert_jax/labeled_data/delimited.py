"""Describe the format of a table, and read the rows of TSV and CSV files."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, assert_never, get_args

from bert_jax.labeled_data.files import MAX_LINE_BYTES, file_lines, find_file
from bert_jax.local_paths import LocalPath
from bert_jax.text.files import JSON_LINES_SUFFIXES, PARQUET_SUFFIXES, content_suffix, is_tfds

Kind = Literal["auto", "tsv", "csv", "jsonl", "parquet"]
_KINDS: dict[str, Kind] = {
    ".tsv": "tsv",
    ".csv": "csv",
    **dict.fromkeys(JSON_LINES_SUFFIXES, "jsonl"),
    **dict.fromkeys(PARQUET_SUFFIXES, "parquet"),
}


@dataclass(frozen=True)
class TableFormat:
    """How rows stand in a file.

    kind: "tsv", a row a line, columns between tabs, no quoting at all; "csv", RFC 4180; "jsonl",
    one object a line; "parquet"; "auto" is what each file's name says. header: whether the first
    line of a TSV or CSV file names its columns; if not, they go by number, "0" the first.
    short_rows: whether a row that ends before a wanted column is an error, or left out and counted
    in the log. delimiter: what a CSV file has for the comma, such as ";". Of these nothing bears on
    `tfds:...`, whose columns have names and whose rows are whole; tfds_data_dir: where TensorFlow
    Datasets keeps it, "" for its own default.
    """

    kind: Kind = "auto"
    header: bool = True
    short_rows: Literal["error", "skip"] = "error"
    tfds_data_dir: LocalPath = ""
    delimiter: str = ","

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(Kind)):
            expected = ", ".join(map(repr, kinds))
            raise ValueError(f"kind is {self.kind!r}; expected one of {expected}")
        if self.short_rows not in ("error", "skip"):
            raise ValueError(f"short_rows is {self.short_rows!r}; expected 'error' or 'skip'")
        if self.kind in ("jsonl", "parquet") and not self.header:
            raise ValueError("header is False; JSON Lines and Parquet always have names")
        if self.kind in ("jsonl", "parquet") and self.short_rows == "skip":
            raise ValueError("short_rows is 'skip'; rows of JSON Lines and Parquet are never short")
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter is {self.delimiter!r}; expected one character, as ';'")
        if self.kind not in ("auto", "csv") and self.delimiter != ",":
            raise ValueError(
                f"delimiter is {self.delimiter!r}; it is for kind='csv' alone, and kind is "
                f"{self.kind!r}"
            )

    def of(self, path: str) -> TableFormat:
        """The same with the kind of the file `path` in place of "auto", as its name says.

        ValueError: the name says none, or one that does not go with the rest.
        """
        if self.kind != "auto" or is_tfds(path):
            return self
        kind = _KINDS.get(content_suffix(Path(path)))
        if kind is None:
            raise ValueError(
                f"{path}: the format cannot be recognized by the extension. Set form.kind to one "
                f"of {', '.join(get_args(Kind)[1:])}, or rename the file to end in one of "
                f"{', '.join(_KINDS)}"
            )
        try:
            return replace(self, kind=kind)
        except ValueError as error:
            raise ValueError(
                f"{path}: {error} (by the file's extension, as form.kind is 'auto')"
            ) from None

    def for_another(self, path: str) -> TableFormat:
        """Return the format for another file, without a CSV delimiter if it is not a CSV file."""
        csv = is_tfds(path) or _KINDS.get(content_suffix(Path(path))) in (None, "csv")
        return self if csv or self.kind != "auto" else replace(self, delimiter=",")


def check_columns(form: TableFormat, columns: Mapping[str, str]) -> None:
    """Refuses one column for two of `columns`, {what it is for: its name or number}, "" for none.

    ValueError says which two: a model that reads its label as a text learns nothing else.
    """
    seen: dict[str, str] = {}
    for what, name in columns.items():
        number = not form.header and name.isascii() and name.isdigit()
        column = str(int(name)) if number else name  # "01" is "1"
        if column and (before := seen.setdefault(column, what)) != what:
            raise ValueError(
                f"{before} and {what} are both column {name!r}; expected a column of its own for "
                "each"
            )


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
            advice = "a text cannot hold tabs"
            if form.kind == "csv":
                advice = quoted
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


# What to set for a file whose columns are separated by commas, by the kind that was expected.
_COMMAS: dict[Kind, str] = dict.fromkeys(get_args(Kind), 'form.delimiter=","')
_COMMAS["tsv"] = 'form.kind="csv"'


def other_form(first: Sequence[str], form: TableFormat) -> str:
    """Return advice if the first line seems to be of another format, "" if not."""
    if first[0].lstrip().startswith("{"):
        return 'If the file is JSON Lines, set form.kind="jsonl".'
    if len(first) > 1:
        return ""
    keys = {
        "\t": ("tabs", 'form.kind="tsv"'),
        ",": ("commas", _COMMAS[form.kind]),
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
    match form.kind:
        case "tsv":
            return _tsv_cells(path)
        case "csv":
            return _csv_cells(path, form.delimiter)
        case "auto" | "jsonl" | "parquet":
            raise AssertionError(f"a file of kind {form.kind!r} has no cells")
        case _:
            assert_never(form.kind)


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


def check_no_header(
    path: str, form: TableFormat, column: str, is_label: Callable[[str], bool]
) -> None:
    """Refuses a file read without a header whose first line is one, judging by its label column.

    It tells where the first row alone has a word there that is no label: other rows may have
    labels, numbers, signs ("?", "-1"), nothing, or no such column, as test sets do. Raises
    ValueError naming file, line and value.
    """
    if form.header or is_tfds(path) or not (column.isascii() and column.isdigit()):
        return

    def word_in(row: list[str]) -> str:
        cell = row[int(column)] if int(column) < len(row) else ""
        return cell if any(map(str.isalpha, cell)) and not is_label(cell) else ""

    rows = delimited_cells(find_file(path), form.of(path))
    place, first = next(rows, ("", []))
    word, others = word_in(first), 0
    if not word:
        return
    for _, row in rows:
        if word_in(row):
            return
        others += 1
    if others:
        raise ValueError(
            f"{place}: {word[:80]!r} in the label column, {column}, is no label, and no other row "
            "has such a word: the line seems to name the columns, but form.header=False says that "
            "it is an example. Remove it, set form.header=True if all files have such a line, "
            "or correct the cell"
        )
