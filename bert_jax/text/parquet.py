"""Read the text column of a Parquet file as documents, or its rows as records of named values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bert_jax.storage.locations import arrow_source, num_bytes_of
from bert_jax.storage.urls import Location
from bert_jax.text.arrow_columns import check_column, is_system_error, row_documents
from bert_jax.text.documents import Document, SourceCounts, SourceOptions

_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 4096


def read_parquet(
    path: Location, options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    """Yield the document in each row's text column, reading the file page by page.

    Rows are numbered from 0 across the whole file. Individual rows that are null or not UTF-8 are
    skipped if `options.on_bad_line` is "skip".

    Raises:
      ValueError: the file is incomplete or has no such column, the column does not contain text, or
        a row cannot be used and `options.on_bad_line` is "error".
    """
    size, bytes_before = num_bytes_of(path), counts.bytes_read
    row = 0
    try:
        # The file is read with a small buffer and without read-ahead, since a row group may be
        # larger than memory.
        with (
            arrow_source(path) as source,
            pq.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False) as file,
        ):
            check_column(file.schema_arrow, path, options.text_field)
            for batch in file.iter_batches(_batch_rows(file), columns=[options.text_field]):
                counts.bytes_read = bytes_before + size * (row + batch.num_rows) // max(
                    1, file.metadata.num_rows
                )
                # Read the column as binary, so that one row with invalid UTF-8 does not make the
                # whole batch fail.
                for value in batch.column(0).cast(pa.large_binary()).to_pylist():
                    yield from row_documents(value, f"{path}:row {row}", options, counts)
                    row += 1
    except (pa.ArrowException, OSError) as error:
        if is_system_error(error):
            raise
        raise ValueError(
            f"{path}: not a complete Parquet file (stopped at row {row}): "
            f"{str(error).rstrip('.')}. Download or write the file again."
        ) from error


def _batch_rows(file: Any) -> int:
    metadata = file.metadata
    num_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
    mean_row_bytes = max(1, num_bytes // max(1, metadata.num_rows))
    return max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // mean_row_bytes))


_BATCH_ROWS = 1024
_JSON = (str, bool, int, float, list, dict, type(None))


def parquet_records(path: Location, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, record) for each row.

    The place is "file:row 0" for the first row, and the record is a dict from column to value.

    Args:
      path: the file.
      columns: the columns to read. For "a.b", the whole column "a" is read, unless a column is
        named "a.b".

    Raises:
      ValueError: a column does not exist, the file is incomplete, or a value has no JSON
        equivalent. The message gives the file and row.
    """
    row = 0
    try:
        with arrow_source(path) as source, pq.ParquetFile(source) as file:
            read = [_top_level(name, file.schema_arrow.names, path) for name in columns]
            for batch in file.iter_batches(_BATCH_ROWS, columns=list(dict.fromkeys(read))):
                for record in batch.to_pylist():
                    place = f"{path}:row {row}"
                    _check(record, place)
                    yield place, record
                    row += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if is_system_error(error):
            raise
        raise ValueError(
            f"{path}: not a complete Parquet file with text in UTF-8 (stopped at row {row}): "
            f"{str(error).rstrip('.')}. Download or write the file again."
        ) from error


def parquet_columns(path: Location) -> list[str]:
    """Return the names of the columns that contain strings, numbers or booleans.

    Raises:
      ValueError: the file is not a complete Parquet file.
    """
    try:
        with arrow_source(path) as source:
            schema = pq.read_schema(source)
    except (pa.ArrowException, OSError) as error:
        if is_system_error(error):
            raise
        raise ValueError(
            f"{path}: not a complete Parquet file: {str(error).rstrip('.')}. Download or write the "
            "file again."
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


def _top_level(name: str, columns: Sequence[str], path: Location) -> str:
    column = name if name in columns else name.partition(".")[0]
    if column not in columns:
        names = ", ".join(map(repr, columns[:20])) or "none"
        raise ValueError(f"{path}: no column {name!r}; the columns are {names}.")
    return column


def _check(record: dict[str, Any], place: str) -> None:
    for name, value in record.items():
        if not isinstance(value, _JSON):
            raise ValueError(
                f"{place}: column {name!r} contains a value of type {type(value).__name__}. "
                "Expected strings or numbers."
            )
