"""Read columns from TSV, CSV, JSON Lines and Parquet files, and from TensorFlow Datasets."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, assert_never

from bert_jax.json_files import json_kind, parse_json
from bert_jax.labeled_data.delimited import TableFormat, delimited_rows
from bert_jax.labeled_data.files import file_lines, find_file
from bert_jax.storage.urls import Location
from bert_jax.text.files import is_tfds
from bert_jax.text.tfds import tfds_values

logger = logging.getLogger(__name__)

_JSON_KINDS = {"NoneType": "null", "dict": "object", "list": "array", "bool": "boolean"}


class Skip(NamedTuple):
    """The condition for skipping a row: its cell in `column` is one of `values`.

    Attributes:
      column: the name of the column.
      values: the cell values for which a row is skipped; "" also stands for null.
      logged: whether to log how many rows are skipped.
    """

    column: str
    values: tuple[str, ...]
    logged: bool = True


class Table(NamedTuple):
    """The columns read from a table.

    Attributes:
      columns: {name: [rows] cells}.
      locations: [rows] "file:line" or "tfds:name[row]".
      numbers: [rows] row numbers, which start at 0 and also count skipped rows.
    """

    columns: dict[str, list[str]]
    locations: list[str]
    numbers: list[int]


class _Row(NamedTuple):
    location: str
    # There is one value per requested column, or fewer if the row is too short.
    values: list[Any]


def read_table(
    path: str,
    form: TableFormat,
    texts: Sequence[str],
    scalars: Sequence[str] = (),
    arrays: Sequence[str] = (),
    skip: Skip | None = None,
) -> Table:
    """Read columns from a table.

    TFDS class labels are converted to their names, and missing ones to "". A column name such as
    "a.0" or "a.b" refers to an item of an array or object in the JSON field "a", unless a field has
    that full name.

    Args:
        path: a file, which may be compressed, or "tfds:NAME[:SPLIT]", where the split defaults to
            train.
        form: the format of the table.
        texts: the columns that must contain strings.
        scalars: the columns that may also contain JSON or TFDS numbers and booleans. These are
            converted to their JSON text.
        arrays: the columns, among `scalars`, that may also contain arrays.
        skip: which rows to skip, depending on their cell in one of `scalars`, or None to keep all
            rows.

    Raises:
        ValueError: the file or a column does not exist, the file's format is unknown (see
            `TableFormat.resolve`), a row has no value for a column, a value has the wrong type, or
            there are no rows. The message gives the file, line and value.
    """
    names = list(dict.fromkeys([*texts, *scalars]))
    form = form.resolve(path)
    rows = _rows(path, form, names, skip)
    columns: list[list[str]] = [[] for _ in names]
    locations: list[str] = []
    numbers: list[int] = []
    short = 0
    skipped: Counter[str] = Counter()
    for number, (location, values) in enumerate(rows):
        if len(values) < len(names):
            _check_short(location, names[len(values)], form)
            short += 1
            continue
        if (
            skip
            and (cell := _skipped(values[names.index(skip.column)], skip, location)) is not None
        ):
            skipped[cell] += 1
            continue
        for name, column, value in zip(names, columns, values, strict=True):
            if name in arrays and isinstance(value, list):
                value = json.dumps(value)
            column.append(_as_text(value, name, location, scalar=name in scalars))
        locations.append(location)
        numbers.append(number)
    if short:
        logger.warning("%s: skipped %d rows that end before their last column", path, short)
    for cell, count in skipped.items() if skip and skip.logged else ():
        num_rows = "1 row" if count == 1 else f"{count:,} rows"
        logger.info("%s: skipped %s labeled %r", path, num_rows, cell)
    if skipped and not locations:
        raise ValueError(
            f"{path}: no rows are left after skipping the labels {', '.join(map(repr, skipped))}. "
            "Change skip_labels, or add rows with other labels"
        )
    if not locations:
        raise ValueError(f"{path} contains no rows. Add at least one example")
    return Table(dict(zip(names, columns, strict=True)), locations, numbers)


def _rows(path: str, form: TableFormat, names: list[str], skip: Skip | None) -> Iterator[_Row]:
    """Iterate over the rows of a file or dataset whose format has been resolved."""
    if is_tfds(path):
        return _tfds_rows(path, form, names)
    match form.kind:
        case "jsonl":
            return _json_rows(find_file(path), names, skip)
        case "parquet":
            return _parquet_rows(find_file(path), names)
        case "tsv" | "csv":
            return itertools.starmap(_Row, delimited_rows(find_file(path), form, names))
        case "auto":
            raise AssertionError("the format must be resolved before the file is read")
        case _:
            assert_never(form.kind)


def _skipped(value: Any, skip: Skip, location: str) -> str | None:
    """Return the row's label if the row must be skipped, or None to keep it."""
    if value is None:
        return "" if "" in skip.values else None
    if isinstance(value, (list, dict)):
        return None
    cell = _as_text(value, skip.column, location, scalar=True)
    return cell if cell in skip.values else None


def _check_short(location: str, name: str, form: TableFormat) -> None:
    if form.short_rows == "error":
        raise ValueError(
            f"{location}: the row ends before column {name!r}. Complete the row, or skip such rows "
            "with form.short_rows='skip'"
        )


def _as_text(value: Any, name: str, location: str, *, scalar: bool) -> str:
    if scalar and isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if not isinstance(value, str):
        kind = _JSON_KINDS.get(type(value).__name__, "number")
        raise ValueError(
            f"{location}: column {name!r} is {json.dumps(value)[:80]}, a JSON {kind}, but must be "
            f"a string{' or a number' if scalar else ''}"
        )
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{location}: column {name!r} contains a lone surrogate at character "
                f"{error.start}, which is not a valid Unicode character"
            ) from None
    return value


def _json_rows(path: Location, names: Sequence[str], skip: Skip | None) -> Iterator[_Row]:
    optional = skip.column if skip and "" in skip.values else None
    for location, record in json_records(path):
        if optional is not None and optional not in record and "." not in optional:
            record[optional] = None
        yield _Row(location, [_field(record, name, location) for name in names])


def json_records(path: Location) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location ("file:line") and content of each object in a JSON Lines file.

    Raises:
        ValueError: a line is not a JSON object. The message gives the file and line.
    """
    for number, line in enumerate(file_lines(path), 1):
        if not line.strip():
            continue
        location = f"{path}:{number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ValueError(
                f"{location}: not valid JSON: {error}. Each line must contain one JSON object"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{location}: the line contains {json_kind(record)}. Each line must contain one "
                "JSON object"
            )
        yield location, record


def _parquet_rows(path: Location, names: Sequence[str]) -> Iterator[_Row]:
    from bert_jax.text.parquet import parquet_records  # importing pyarrow takes 0.3 s

    for location, record in parquet_records(path, names):
        yield _Row(location, [_field(record, name, location) for name in names])


def _field(record: dict[str, Any], name: str, location: str) -> Any:
    if name in record:
        return record[name]
    value: Any = record
    for part in name.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            fields = ", ".join(map(repr, list(record)[:20])) or "none"
            raise ValueError(
                f"{location}: the object has no field {name!r}. Its fields are {fields}"
            )
    return value


def _tfds_rows(name: str, form: TableFormat, names: Sequence[str]) -> Iterator[_Row]:
    rows = tfds_values(name, form.tfds_data_dir or None, names)
    for index, values in enumerate(rows):
        yield _Row(f"{name}[{index}]", values)
