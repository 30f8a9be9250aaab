"""Describe table formats, and read rows from TSV and CSV files."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, assert_never, get_args

from bert_jax.labeled_data.files import MAX_LINE_BYTES, file_lines, find_file
from bert_jax.local_paths import LocalPath
from bert_jax.storage.urls import Location, parse_location
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
    """The format of a table.

    Tables from TensorFlow Datasets always have column names and complete rows, so only
    `tfds_data_dir` affects them.

    Attributes:
      kind: "tsv" (one row per line, tab-separated, no quoting), "csv" (RFC 4180), "jsonl" (one
        object per line), "parquet", or "auto" to go by each file's extension.
      header: whether the first line of a TSV or CSV file contains the column names. Without a
        header, columns are referred to by number, starting at "0".
      short_rows: what to do with a row that ends before a required column: "error" to reject the
        file, or "skip" to skip such rows and log how many there were.
      tfds_data_dir: the directory where TensorFlow Datasets stores its data, or "" for its default
        directory.
      delimiter: the character that separates columns in a CSV file, such as ";".
    """

    kind: Kind = "auto"
    header: bool = True
    short_rows: Literal["error", "skip"] = "error"
    tfds_data_dir: LocalPath = ""
    delimiter: str = ","

    def __post_init__(self) -> None:
        if self.kind not in (kinds := get_args(Kind)):
            expected = ", ".join(map(repr, kinds))
            raise ValueError(f"kind={self.kind!r}: expected one of {expected}")
        if self.short_rows not in ("error", "skip"):
            raise ValueError(f"short_rows={self.short_rows!r}: expected 'error' or 'skip'")
        if self.kind in ("jsonl", "parquet") and not self.header:
            raise ValueError(
                "header=False: the columns of JSON Lines and Parquet files always have names. Set "
                "it to True"
            )
        if self.kind in ("jsonl", "parquet") and self.short_rows == "skip":
            raise ValueError(
                "short_rows='skip': rows of JSON Lines and Parquet files are never short. Set it "
                "to 'error'"
            )
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter={self.delimiter!r}: expected one character, such as ';'")
        if self.kind not in ("auto", "csv") and self.delimiter != ",":
            raise ValueError(
                f"delimiter={self.delimiter!r}: only supported for kind='csv', but kind is "
                f"{self.kind!r}. Omit it"
            )

    def resolve(self, path: str) -> TableFormat:
        """Return the format of a file, resolving the kind "auto" from the file's extension.

        Raises:
          ValueError: the extension is unknown, or the format is incompatible with the other fields.
            If the file does not exist, the message reports that instead of the extension.
        """
        if self.kind != "auto" or is_tfds(path):
            return self
        kind = _KINDS.get(content_suffix(parse_location(path)))
        if kind is None:
            # Raises an error if the file does not exist, which is the more helpful message.
            find_file(path)
            raise ValueError(
                f"{path}: the extension does not identify a supported format. Set form.kind to one "
                f"of {', '.join(get_args(Kind)[1:])}, or rename the file to end in one of "
                f"{', '.join(_KINDS)}"
            )
        try:
            return replace(self, kind=kind)
        except ValueError as error:
            raise ValueError(
                f"{path}: {error} (the extension determines the format, since form.kind is 'auto')"
            ) from None

    def for_other_file(self, path: str) -> TableFormat:
        """Return the format for another file, keeping the delimiter only if that file is CSV."""
        csv = is_tfds(path) or _KINDS.get(content_suffix(parse_location(path))) in (None, "csv")
        return self if csv or self.kind != "auto" else replace(self, delimiter=",")


def check_columns(form: TableFormat, columns: Mapping[str, str]) -> None:
    """Check that no column is used twice, so that a model cannot see the label in its input.

    Args:
      form: the format of the table.
      columns: {field: the name or number of its column, or "" if it has none}.

    Raises:
      ValueError: two fields use the same column.
    """
    seen: dict[str, str] = {}
    for field, name in columns.items():
        number = not form.header and name.isascii() and name.isdigit()
        # Numbers such as "01" and "1" refer to the same column.
        column = str(int(name)) if number else name
        if column and (other := seen.setdefault(column, field)) != field:
            raise ValueError(f"{other} and {field} are both column {name!r}. Use different columns")


LONE_RETURN = (
    "there is a carriage return (CR) without a line feed (LF), but lines must end with a line "
    r"feed. Convert the file, for example with `tr '\r' '\n'`"
)


def delimited_rows(
    path: Location, form: TableFormat, names: Sequence[str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each row's location ("file:line") and its cells in the columns `names`.

    If a row ends before one of these columns, only the cells before that column are returned.

    Raises:
        ValueError: a column does not exist, the file is empty or malformed, or a row has more
            columns than the first line. The message gives the file and line.
    """
    cells = delimited_cells(path, form)
    first = next(cells, None)
    if first is None:
        raise ValueError(f"{path} is empty. Add at least one example")
    width = len(first[1])
    if form.header:
        indices = [_index_by_name(name, first[1], form, path) for name in names]
    else:
        indices = [_index_by_number(name, first, form, path) for name in names]
        cells = itertools.chain([first], cells)
    for location, row in cells:
        if len(row) > width:
            if width == 1 and (advice := format_advice(first[1], form)):
                raise ValueError(
                    f"{location}: the line has {len(row)} columns, but the first line has only "
                    "one, "
                    f"{first[1][0][:80]!r}. {advice}"
                )
            advice = "Remove tabs from the texts"
            if form.kind == "csv":
                advice = f'Put texts that contain "{form.delimiter}" in quotes ("...")'
            raise ValueError(
                f"{location}: the line has {len(row)} columns, but the first line has {width}. "
                f"{advice}"
            )
        values: list[str] = []
        for index in indices:
            if index >= len(row):
                break
            values.append(row[index])
        yield location, values


def _index_by_name(name: str, header: Sequence[str], form: TableFormat, path: Location) -> int:
    if header.count(name) == 1:
        return header.index(name)
    columns = ", ".join(repr(cell[:40]) for cell in header[:20]) or "none"
    problem = f"{header.count(name)} columns are" if name in header else "no column is"
    problem = f"{path}:1: {problem} named {name!r}. This line has the columns {columns}."
    if advice := format_advice(header, form):
        raise ValueError(f"{problem} {advice}")
    raise ValueError(
        f"{problem} Rename one of the columns in the file to {name!r} or, if this line is an "
        "example, insert a header line. For a new run, you can instead change the config key "
        f"whose value is {name!r} to one of these columns, or set form.header=False and specify "
        "columns by number."
    )


# Maps the configured kind of a file to the setting to suggest if the file turns out to be
# comma-separated.
_COMMAS: dict[Kind, str] = dict.fromkeys(get_args(Kind), 'form.delimiter=","')
_COMMAS["tsv"] = 'form.kind="csv"'


def format_advice(first: Sequence[str], form: TableFormat) -> str:
    """Return a hint if the first line seems to be in a different format, or "" if it does not."""
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
        f"If {name} separate the columns, set {key}."
        for separator, (name, key) in keys.items()
        if separator in first[0]
    ]
    return " ".join(advice)


def _index_by_number(
    name: str, first: tuple[str, list[str]], form: TableFormat, path: Location
) -> int:
    if not (name.isascii() and name.isdigit()):
        raise ValueError(
            f"{path}: column {name!r} is specified by name, but header=False. Specify the column "
            "by number, starting at '0', or set header=True if the first line contains the names"
        )
    location, row = first
    # No later row may be longer than the first one.
    if int(name) >= len(row):
        numbers = f"the columns '0' to '{len(row) - 1}'" if len(row) > 1 else "only the column '0'"
        problem = f"{location}: there is no column {name!r}. This line has {numbers}."
        if advice := format_advice(row, form):
            raise ValueError(f"{problem} {advice}")
        raise ValueError(
            f"{problem} Fix the line or, for a new run, change the config key whose value is "
            f"{name!r} to one of these columns."
        )
    return int(name)


def delimited_cells(path: Location, form: TableFormat) -> Iterator[tuple[str, list[str]]]:
    """Yield the location ("file:line") and all cells of each non-empty line.

    Raises:
        ValueError: the file is malformed. The message gives the file and line.
    """
    match form.kind:
        case "tsv":
            return _tsv_cells(path)
        case "csv":
            return _csv_cells(path, form.delimiter)
        case "auto" | "jsonl" | "parquet":
            raise AssertionError(f"a file of kind {form.kind!r} is not delimited")
        case _:
            assert_never(form.kind)


def _tsv_cells(path: Location) -> Iterator[tuple[str, list[str]]]:
    # Count the empty lines before the current line. They are rows, except at the end of the file.
    empty = 0
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


def _csv_cells(path: Location, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    # This limit counts characters and applies to the whole process; the default is 131,072.
    csv.field_size_limit(MAX_LINE_BYTES)
    reader = csv.reader(file_lines(path), strict=True, delimiter=delimiter)
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"{path}:{number}: {_csv_problem(error, path)}") from error
        if row:
            yield f"{path}:{number}", row


def _csv_problem(error: csv.Error, path: Location) -> str:
    if "new-line character" in str(error):
        return f"{LONE_RETURN}, or put texts that contain one in quotes"
    if "field larger than" in str(error):
        return (
            f"the cell that starts here is longer than {MAX_LINE_BYTES:,} characters. Split its "
            'text, or close its opening quote (")'
        )
    hint = ""
    if "end of data" in str(error):
        hint = ' (the opening quote, ", in this row is never closed)'
    elif next(file_lines(path)).lstrip().startswith("{"):
        hint = '. If the file is JSON Lines, set form.kind="jsonl"'
    return f"not valid CSV (RFC 4180): {error}{hint}"


def check_no_header(
    path: str, form: TableFormat, column: str, is_label: Callable[[str], bool]
) -> None:
    """Raise ValueError if the label column shows that a file has a header although it should not.

    The first line is a header if it is the only line whose cell in the label column contains
    letters and is not a label. In a test set, the other cells in this column may be labels,
    numbers or placeholders such as "?" or "-1", or they may be empty or missing.

    Args:
      path: the file.
      form: the file's format.
      column: the label column.
      is_label: a function that returns whether a cell is a label.

    Raises:
      ValueError: the first line is a header. The message gives the file, line and value.
    """
    if form.header or is_tfds(path) or not (column.isascii() and column.isdigit()):
        return

    def word_in(row: list[str]) -> str:
        cell = row[int(column)] if int(column) < len(row) else ""
        return cell if any(map(str.isalpha, cell)) and not is_label(cell) else ""

    rows = delimited_cells(find_file(path), form.resolve(path))
    location, first = next(rows, ("", []))
    word, others = word_in(first), 0
    if not word:
        return
    for _, row in rows:
        if word_in(row):
            return
        others += 1
    if others:
        raise ValueError(
            f"{location}: {word[:80]!r} in the label column, {column}, is not a label, and no "
            "other row has an unknown word in this column. The line seems to be a header, but "
            "form.header=False means that it is an example. Remove the line, set form.header=True "
            "if all files have such a line, or correct the cell"
        )
