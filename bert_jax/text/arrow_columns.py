"""Check the text column of an Arrow or Parquet file, and turn its values into documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bert_jax.storage.errors import StorageError
from bert_jax.storage.urls import Location
from bert_jax.text.documents import Document, SourceCounts, SourceOptions, checked_documents


def is_system_error(error: Exception) -> bool:
    """Return whether an error comes from the system or a bucket rather than from bad content.

    Arrow sets no `errno` for errors in a file's content.
    """
    if isinstance(error, StorageError):
        return True
    return isinstance(error, OSError) and error.errno is not None


def row_documents(
    value: bytes | None, place: str, options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    """Yield the documents in a value of the text column, given as undecoded bytes or None for null.

    A value that is null or not UTF-8 is skipped if `options.on_bad_line` is "skip".
    """
    if value is None:
        counts.reject(options, place, f"column {options.text_field!r} is null")
        return
    try:
        # Arrow and Parquet store strings as UTF-8.
        text = value.decode("utf-8")
    except UnicodeDecodeError as error:
        counts.reject(
            options,
            place,
            f"column {options.text_field!r} is not UTF-8: "
            f"byte 0x{value[error.start]:02x} at byte {error.start} of the text",
        )
        return
    yield from checked_documents(text, place, options, counts)


def check_column(schema: Any, path: Location, field: str) -> None:
    """Raise ValueError if a file has no such column, or if the column does not contain text."""
    if field not in schema.names:
        raise ValueError(
            f"{path}: no column {field!r}; the columns are {', '.join(map(repr, schema.names))}. "
            "Choose the column with --text-field."
        )
    kind = schema.field(field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_string_view,
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
    )
    if not any(test(kind) for test in tests):
        raise ValueError(f"{path}: column {field!r} contains {kind}; expected strings.")
