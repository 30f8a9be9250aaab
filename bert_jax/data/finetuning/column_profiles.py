"""Profile a table's columns in one pass over its rows."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.data.finetuning.delimited_rows import delimited_cells, delimited_rows
from bert_jax.data.finetuning.file_lines import find_file
from bert_jax.data.finetuning.table_format import TableFormat
from bert_jax.data.finetuning.tables import json_records

# Distinct values that are counted at most: more than any set of classes has.
MOST_VALUES = 10_000
# Two words, or letters of a script written without spaces: dates, addresses and ids have neither.
_LIKE_TEXT = re.compile(r"[^\W\d_]{2,}\s+[^\W\d_]{2,}|[^\W\d_\x00-\x7f]{2}")


@dataclass
class ColumnProfile:
    """Counts over the cells of a column.

    name: the column's name, or its number in a file without a header. rows: the number of rows with
    a value. missing: the number of rows without one, and first_missing, the first one's place.
    values: how often each value occurs, None above `MOST_VALUES`. texts: the number of text-like
    values. nested: whether some values are lists or objects.
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

    def add(self, value: Any, place: str) -> None:
        """Count a cell; None and an empty string are missing."""
        if isinstance(value, (list, dict)):
            self.nested = True
            return
        cell = json.dumps(value) if isinstance(value, (bool, int, float)) else value
        if not cell:
            self.missing += 1
            self.first_missing = self.first_missing or place
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
            if len(self.values) > MOST_VALUES:
                self.values = None

    @property
    def mean_length(self) -> float:
        """The mean number of characters of a value."""
        return self.characters / max(1, self.rows)

    @property
    def like_text(self) -> bool:
        """Whether at least half of the values look like text."""
        return not self.nested and self.rows > 0 and 2 * self.texts >= self.rows


def as_number(cell: str) -> float | None:
    """Return a cell as a finite number, None if it is not one."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def column_profiles(path: str, form: TableFormat) -> list[ColumnProfile]:
    """Read a file, compressed or not, and return the profiles of its columns in order.

    Skips columns that share their name with another, and Parquet columns that do not hold strings,
    numbers or booleans.

    Raises:
        ValueError: the file does not exist or is damaged; names file and line. See also
            `TableFormat.of`.
    """
    form, file = form.of(path), find_file(path)
    names: list[str] = []  # JSON Lines name their columns in every row
    if form.kind == "jsonl":
        records = json_records(file)
    elif form.kind == "parquet":
        # pyarrow takes 0.3 s to import.
        from bert_jax.data.finetuning.parquet_rows import parquet_columns, parquet_records

        names = parquet_columns(file)
        records = parquet_records(file, names)
    else:
        names = _unique_names(file, form)
        records = _delimited_records(file, form, names)
    profiles = {name: ColumnProfile(name) for name in names}
    total = 0
    for place, record in records:
        for name in [name for name in record if name not in profiles]:
            first = f"{file}:1" if total else ""  # earlier rows lack the field
            profiles[name] = ColumnProfile(name, missing=total, first_missing=first)
        for name, profile in profiles.items():
            profile.add(record.get(name), place)
        total += 1
    if not total:
        raise ValueError(f"{path} holds no row; expected at least one example")
    return list(profiles.values())


def _unique_names(path: Path, form: TableFormat) -> list[str]:
    first = next(delimited_cells(path, form), None)
    if first is None:
        raise ValueError(f"{path} is empty; expected at least one example")
    cells = first[1]
    if not form.header:
        return [str(number) for number in range(len(cells))]
    return [name for name, count in Counter(cells).items() if count == 1]


def _delimited_records(
    path: Path, form: TableFormat, names: list[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, cells in delimited_rows(path, form, names):
        yield place, dict(zip(names, cells, strict=False))
