"""Tables of examples, by named column: TSV, CSV, JSON Lines, Parquet and TensorFlow Datasets."""

from __future__ import annotations

import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, assert_never

from bert_jax.json_files import parse_json
from bert_jax.labeled_data.delimited import TableFormat, delimited_rows
from bert_jax.labeled_data.files import file_lines, find_file
from bert_jax.text.files import is_tfds
from bert_jax.text.tfds import tfds_values

logger = logging.getLogger(__name__)

_JSON_KINDS = {"NoneType": "null", "dict": "object", "list": "array", "bool": "boolean"}


class Skip(NamedTuple):
    """Rows to skip: their cell in `column` is one of `values`, "" for null.

    logged: whether to log their number.
    """

    column: str
    values: tuple[str, ...]
    logged: bool = True


class Table(NamedTuple):
    """Columns by name, each [rows], and where each row stands: "file:line", "tfds:name[row]".

    numbers: of the rows, from 0; those left out are counted too.
    """

    columns: dict[str, list[str]]
    places: list[str]
    numbers: list[int]


class _Row(NamedTuple):
    place: str
    values: list[Any]  # as the columns asked for; shorter in a row that ends before


def read_table(
    path: str,
    form: TableFormat,
    texts: Sequence[str],
    scalars: Sequence[str] = (),
    arrays: Sequence[str] = (),
    skip: Skip | None = None,
) -> Table:
    """Reads columns of a file, packed or not, or of "tfds:NAME[:SPLIT]" (its train split if none).

    texts: columns of strings. scalars: columns that may also hold JSON or TFDS numbers and
    booleans, which become their JSON text. arrays: those of them that may hold arrays too. A class
    label of TFDS becomes its name, "" where there is none. A JSON field of which "a.0" or "a.b"
    names a part is taken apart where no field has that very name. skip: the rows to skip; its
    column is one of the scalars.

    Raises:
        ValueError: no such file or column, a row without a column, a value of another type, a file
            without rows; names file, line and value. As `TableFormat.of`.
    """
    names = list(dict.fromkeys([*texts, *scalars]))
    form = form.of(path)
    rows = _rows(path, form, names, skip)
    columns: list[list[str]] = [[] for _ in names]
    places: list[str] = []
    numbers: list[int] = []
    short = 0
    skipped: Counter[str] = Counter()
    for number, (place, values) in enumerate(rows):
        if len(values) < len(names):
            _check_short(place, names[len(values)], form)
            short += 1
            continue
        if skip and (cell := _skipped(values[names.index(skip.column)], skip, place)) is not None:
            skipped[cell] += 1
            continue
        for name, column, value in zip(names, columns, values, strict=True):
            if name in arrays and isinstance(value, list):
                value = json.dumps(value)
            column.append(_as_text(value, name, place, scalar=name in scalars))
        places.append(place)
        numbers.append(number)
    if short:
        logger.warning("%s: left out %d rows that end before their last column", path, short)
    for cell, count in skipped.items() if skip and skip.logged else ():
        num_rows = "1 row" if count == 1 else f"{count:,} rows"
        logger.info("%s: skipped %s labelled %r", path, num_rows, cell)
    if skipped and not places:
        raise ValueError(
            f"{path}: all rows have one of the labels {', '.join(map(repr, skipped))}, which are "
            "skipped (skip_labels); expected at least one other example"
        )
    if not places:
        raise ValueError(f"{path} holds no row; expected at least one example")
    return Table(dict(zip(names, columns, strict=True)), places, numbers)


def _rows(path: str, form: TableFormat, names: list[str], skip: Skip | None) -> Iterator[_Row]:
    """Return the rows of a file or data set whose format is known."""
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
            raise AssertionError("the kind of a file is known by now")
        case _:
            assert_never(form.kind)


def _skipped(value: Any, skip: Skip, place: str) -> str | None:
    """Return the label of a row to skip, None for a row to keep."""
    if value is None:
        return "" if "" in skip.values else None
    if isinstance(value, (list, dict)):
        return None
    cell = _as_text(value, skip.column, place, scalar=True)
    return cell if cell in skip.values else None


def _check_short(place: str, name: str, form: TableFormat) -> None:
    if form.short_rows == "error":
        raise ValueError(
            f"{place}: the row ends before column {name!r}. Complete it, or skip such rows with "
            "form.short_rows='skip'"
        )


def _as_text(value: Any, name: str, place: str, *, scalar: bool) -> str:
    if scalar and isinstance(value, (bool, int, float)):
        return json.dumps(value)
    if not isinstance(value, str):
        kind = _JSON_KINDS.get(type(value).__name__, "number")
        raise ValueError(
            f"{place}: column {name!r} is {json.dumps(value)[:80]}, a JSON {kind}; expected a "
            f"string{' or a number' if scalar else ''}"
        )
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{place}: column {name!r} holds a lone surrogate at character {error.start}, "
                "which is not a character of Unicode text"
            ) from None
    return value


def _json_rows(path: Path, names: Sequence[str], skip: Skip | None) -> Iterator[_Row]:
    optional = skip.column if skip and "" in skip.values else None
    for place, record in json_records(path):
        if optional is not None and optional not in record and "." not in optional:
            record[optional] = None
        yield _Row(place, [_field(record, name, place) for name in names])


def json_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place ("file:line") and content of every object of a JSON Lines file.

    Raises:
        ValueError: a line is not a JSON object; names file and line.
    """
    for number, line in enumerate(file_lines(path), 1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ValueError(
                f"{place}: not valid JSON: {error}; expected one object on each line"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{place}: a JSON {type(record).__name__}; expected one object on each line"
            )
        yield place, record


def _parquet_rows(path: Path, names: Sequence[str]) -> Iterator[_Row]:
    from bert_jax.text.parquet import parquet_records  # pyarrow takes 0.3 s

    for place, record in parquet_records(path, names):
        yield _Row(place, [_field(record, name, place) for name in names])


def _field(record: dict[str, Any], name: str, place: str) -> Any:
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
            raise ValueError(f"{place}: no field {name!r}; its fields are {fields}")
    return value


def _tfds_rows(name: str, form: TableFormat, names: Sequence[str]) -> Iterator[_Row]:
    rows = tfds_values(name, form.tfds_data_dir or None, names)
    for index, values in enumerate(rows):
        yield _Row(f"{name}[{index}]", values)
