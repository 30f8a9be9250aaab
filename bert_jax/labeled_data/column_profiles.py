"""Profile a table's columns in one pass, and detect the labels in a column."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from bert_jax.labeled_data.delimited import TableFormat, delimited_cells, delimited_rows
from bert_jax.labeled_data.files import find_file
from bert_jax.labeled_data.tables import json_records
from bert_jax.storage.urls import Location

# The maximum number of distinct values to keep track of. No set of classes is this large.
MAX_VALUES = 10_000
# Matches two words, or letters of a script that is written without spaces. Dates, addresses and IDs
# contain neither.
_LIKE_TEXT = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}|[^\W\d_\x00-\x7f]{2}")


@dataclass
class ColumnProfile:
    """Statistics on the cells in a column.

    Attributes:
      name: the column's name or, in a file without a header, its number.
      rows: the number of rows with a value.
      missing: the number of rows without a value.
      first_missing: the location of the first row without a value, "file:line".
      characters: the total number of characters in all values.
      texts: the number of values that look like text.
      numbers: whether all values are finite numbers.
      whole: whether all values are integers.
      nested: whether some values are lists or objects.
      values: how often each value occurs; None if there are more than `MAX_VALUES` distinct values.
    """

    name: str
    rows: int = 0
    missing: int = 0
    first_missing: str = ""
    characters: int = 0
    texts: int = 0
    numbers: bool = True
    whole: bool = True
    nested: bool = False
    values: Counter[str] | None = field(default_factory=Counter)

    def add(self, value: Any, location: str) -> None:
        """Count a cell. None and the empty string count as missing."""
        if isinstance(value, (list, dict)):
            self.nested = True
            return
        cell = json.dumps(value) if isinstance(value, (bool, int, float)) else value
        if not cell:
            self.missing += 1
            self.first_missing = self.first_missing or location
            return
        self.rows += 1
        self.characters += len(cell)
        self.texts += isinstance(value, str) and bool(_LIKE_TEXT.search(cell))
        if self.numbers:
            number = as_number(cell)
            self.numbers = number is not None
            self.whole = self.whole and number is not None and number.is_integer()
        if self.values is not None:
            self.values[cell] += 1
            if len(self.values) > MAX_VALUES:
                self.values = None

    @property
    def mean_length(self) -> float:
        """The mean number of characters per value."""
        return self.characters / max(1, self.rows)

    @property
    def like_text(self) -> bool:
        """Whether at least half of the values look like text."""
        return not self.nested and self.rows > 0 and 2 * self.texts >= self.rows


def as_number(cell: str) -> float | None:
    """Return a cell's numeric value, or None if the cell is not a finite number."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def column_profiles(path: str, form: TableFormat) -> list[ColumnProfile]:
    """Read a file, which may be compressed, and profile its columns in order.

    Columns that share a name are skipped, and so are Parquet columns with values other than
    strings, numbers and booleans.

    Raises:
        ValueError: the file does not exist or is damaged, or its format is unknown (see
            `TableFormat.resolve`). The message gives the file and line.
    """
    form, file = form.resolve(path), find_file(path)
    # In JSON Lines, every row contains the names of its columns.
    names: list[str] = []
    match form.kind:
        case "jsonl":
            records = json_records(file)
        case "parquet":
            # Importing pyarrow takes 0.3 s.
            from bert_jax.text.parquet import parquet_columns, parquet_records

            names = parquet_columns(file)
            records = parquet_records(file, names)
        case "tsv" | "csv":
            names = _unique_names(file, form)
            records = _delimited_records(file, form, names)
        case "auto":
            raise AssertionError("the format must be resolved before the file is read")
        case _:
            assert_never(form.kind)
    profiles = {name: ColumnProfile(name) for name in names}
    total = 0
    for location, record in records:
        for name in [name for name in record if name not in profiles]:
            # If an earlier row exists, it lacks this column.
            first = f"{file}:1" if total else ""
            profiles[name] = ColumnProfile(name, missing=total, first_missing=first)
        for name, profile in profiles.items():
            profile.add(record.get(name), location)
        total += 1
    if not total:
        raise ValueError(f"{path} contains no rows. Add at least one example")
    return list(profiles.values())


def _unique_names(path: Location, form: TableFormat) -> list[str]:
    first = next(delimited_cells(path, form), None)
    if first is None:
        raise ValueError(f"{path} is empty. Add at least one example")
    cells = first[1]
    if not form.header:
        return [str(number) for number in range(len(cells))]
    return [name for name, count in Counter(cells).items() if count == 1]


def _delimited_records(
    path: Location, form: TableFormat, names: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for location, cells in delimited_rows(path, form, names):
        yield location, dict(zip(names, cells, strict=False))


# The prefix of the config keys in error messages.
KEYS = "sentences.files."
# Based on its content, a column is assumed to hold classes if it has at most this many distinct
# values.
FEW_CLASSES = 20
_MAX_CLASSES = 1_000
_PLACEHOLDERS = frozenset(["", "-", "--", "?", "nan", "n/a", "#n/a", "<na>", "null"])
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def kept(values: Mapping[str, int], skip_labels: Collection[str]) -> Counter[str]:
    """Count how often each value occurs, leaving out the values to skip."""
    return Counter({cell: n for cell, n in values.items() if cell not in skip_labels})


def labels_in(
    column: ColumnProfile, path: str, skip_labels: Collection[str], *, forced: bool
) -> tuple[str, ...]:
    """Return the labels in a column in ascending order, or () if it contains numbers to predict.

    Up to 20 distinct integers are assumed to be classes. If there are more than 20 distinct numbers
    and some are not integers, they are assumed to be numbers to predict. Numeric labels are sorted
    by value.

    Args:
        column: the label column.
        path: the file's path, for messages.
        skip_labels: the values that do not count as labels.
        forced: whether to treat every value as a class, even if all values are numbers.

    Raises:
        ValueError: some rows have no label, there are fewer than two labels or far too many, labels
            seem to be missing or misspelled, or it is unclear whether numbers are classes. The
            message lists the config keys to set.
    """
    where = f"the label column {column.name!r}"
    if column.nested:
        raise ValueError(
            f"{path}: {where} contains lists. If rows can have several labels, set {KEYS}labels "
            "and separator"
        )
    if column.missing and "" not in skip_labels:
        raise ValueError(
            f"{column.first_missing}: no label in {where}, which is empty in {column.missing:,} of "
            f"{column.rows + column.missing:,} rows. Add the labels, or skip such rows with "
            f"""{KEYS}skip_labels="('',)\""""
        )
    values = None if column.values is None else kept(column.values, skip_labels)
    few = values is not None and len(values) <= FEW_CLASSES
    count = f"more than {MAX_VALUES:,}" if values is None else f"{len(values):,}"
    if values is not None:
        _check_values(values, path, where)
    cells = None if values is None else [as_number(cell) for cell in values]
    numbers = column.numbers if cells is None else None not in cells
    whole = column.whole if cells is None else all(x.is_integer() for x in cells if x)
    if numbers and not forced:
        if not few and not whole:
            return ()
        if not few or not whole:
            raise ValueError(
                f"{path}: {where} has {count} distinct numbers, which could be numbers to predict "
                f"""or classes. Set {KEYS}labels="()" for numbers or "('classes',)" for classes"""
            )
    rows = column.rows if values is None else sum(values.values())
    if values and all(map(_DECIMAL_COMMA.fullmatch, values)) and not forced:
        raise ValueError(
            f"{path}: the values of {where}, such as {min(values)!r}, seem to be numbers with "
            "decimal commas. Write them with decimal points or, if they are classes, set "
            f"""{KEYS}labels="('classes',)\""""
        )
    if values is None or len(values) > _MAX_CLASSES or (2 * len(values) > rows and not forced):
        raise ValueError(
            f"{path}: {where} has {count} distinct values in {rows:,} rows, too many to be "
            f"classes. Set {KEYS}label to another column, or list all labels in {KEYS}labels"
        )
    _check_spelling(values, path, where)
    return tuple(sorted(values, key=lambda cell: (as_number(cell) or 0.0, cell)))


def _check_values(values: Mapping[str, int], path: str, where: str) -> None:
    if len(values) < 2:
        every = f"every label in {where} is {min(values)!r}" if values else f"{where} has no labels"
        raise ValueError(
            f"{path}: {every}, but at least two distinct labels are needed. Set {KEYS}label to "
            "another "
            "column, or add rows with other labels"
        )
    for cell, count in values.items():
        if _is_placeholder(cell, values):
            raise ValueError(
                f"{path}: {cell!r} in {where} ({count:,} rows) often stands for a missing label. "
                f"""Skip such rows with {KEYS}skip_labels="({cell!r},)" or, if it is a label, """
                f"list all labels in {KEYS}labels"
            )


def _check_spelling(values: Iterable[str], path: str, where: str) -> None:
    """Reject labels that differ only in case, whitespace or number format."""
    spelled: dict[object, str] = {}
    for cell in sorted(values):
        number = as_number(cell)
        key = cell.strip().casefold() if number is None else number
        if (other := spelled.setdefault(key, cell)) != cell:
            raise ValueError(
                f"{path}: {other!r} and {cell!r} in {where} seem to be the same label. Fix the "
                f"file or, if they are different labels, list all labels in {KEYS}labels"
            )


def _is_placeholder(cell: str, values: Collection[str]) -> bool:
    if cell.strip().casefold() in _PLACEHOLDERS:
        return True
    # In many datasets whose labels are 0, 1, 2 and so on, a label of -1 means "no label". If the
    # other labels are only 0 and 1 or include negative numbers, -1 may be a polarity or a point on
    # a scale.
    negative = any(value != cell and value.startswith("-") for value in values)
    return cell == "-1" and {"0", "1", "2"} <= set(values) and not negative
