"""Rows of Parquet files, as records of named values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_BATCH_ROWS = 1024
_JSON = (str, bool, int, float, list, dict, type(None))


def parquet_records(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields where each row stands ("file:row 0" the first) and its values by column.

    columns: that are read; of "a.b" all of "a" where no column has that very name.

    Raises:
        ValueError: there is no such column, the file is not whole, or it holds what JSON has no
            value for; names file and row.
    """
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            read = [_top_level(name, file.schema_arrow.names, path) for name in columns]
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(read))):
                for record in batch.to_pylist():
                    place = f"{path}:row {row}"
                    _check(record, place)
                    yield place, record
                    row += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's trouble; Arrow's own complaints of a damaged file carry no number
        raise ValueError(
            f"{path}: not a whole Parquet file with text in UTF-8, from row {row} on: "
            f"{str(error).rstrip('.')}. Fetch or write the file again"
        ) from error


def parquet_columns(path: Path) -> list[str]:
    """Return the names of the columns that hold strings, numbers or booleans.

    Raises:
        ValueError: the file is not a complete Parquet file.
    """
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"{path}: not a whole Parquet file: {str(error).rstrip('.')}. Fetch or write the file "
            "again"
        ) from error
    return [field.name for field in schema if _is_plain(field.type)]


def _is_plain(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    of_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(
        of_text
        or pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
    )


def _top_level(name: str, there: Sequence[str], path: Path) -> str:
    found = name if name in there else name.partition(".")[0]
    if found not in there:
        columns = ", ".join(map(repr, there[:20])) or "none"
        raise ValueError(f"{path}: no column {name!r}; its columns are {columns}")
    return found


def _check(record: dict[str, Any], place: str) -> None:
    for name, value in record.items():
        if not isinstance(value, _JSON):
            raise ValueError(
                f"{place}: column {name!r} holds a {type(value).__name__}; expected strings or "
                "numbers"
            )
