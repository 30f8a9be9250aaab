"""Read the text column of Arrow files, such as the files of saved Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from bert_jax.storage.locations import num_bytes_of, seekable_file
from bert_jax.storage.urls import Location
from bert_jax.text.arrow_columns import check_column, is_system_error, row_documents
from bert_jax.text.documents import Document, SourceCounts, SourceOptions

# "Arrow columnar format", sections "IPC File Format" and "IPC Streaming Format".
_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
# The number of rows to convert to Python objects at a time.
_SLICE_ROWS = 1024


def read_arrow(path: Location, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the document in each row's text column.

    The file can be in Arrow's streaming format, which `datasets` uses, or in the file format, which
    is also called Feather. Rows are numbered from 0 across the whole file. Individual rows that are
    null or not UTF-8 are skipped if `options.on_bad_line` is "skip". Only one record batch at a
    time is in memory (for a local file, in the page cache).

    Raises:
      ValueError: the file is incomplete or has no such column, the column does not contain text, or
        a row cannot be used and `options.on_bad_line` is "error".
    """
    size, bytes_before = num_bytes_of(path), counts.bytes_read
    row = 0
    try:
        with _opened(path) as source:
            for batch in _batches(source, path, size, options.text_field):
                for start in range(0, batch.num_rows, _SLICE_ROWS):
                    # Read the column as binary, so that one row with invalid UTF-8 does not make
                    # the whole slice fail.
                    column = batch.column(0).slice(start, _SLICE_ROWS).cast(pa.large_binary())
                    for value in column.to_pylist():
                        yield from row_documents(value, f"{path}:row {row}", options, counts)
                        row += 1
                counts.bytes_read = bytes_before + min(size, source.tell())
    except (pa.ArrowException, OSError) as error:
        if is_system_error(error):
            raise
        raise ValueError(
            f"{path}: not a complete Arrow file (stopped at row {row}): "
            f"{str(error).rstrip('.')}. Download or write the file again."
        ) from error


@contextmanager
def _opened(path: Location) -> Iterator[Any]:
    """Open a local file without copying its pages, or an object in a bucket to read in chunks."""
    if isinstance(path, Path):
        with pa.memory_map(str(path)) as source:
            yield source
    else:
        with seekable_file(path) as file, pa.PythonFile(file, mode="r") as source:
            yield source


def _batches(source: Any, path: Location, size: int, field: str) -> Iterator[Any]:
    """Yield the record batches, each with only the text column."""
    magic = source.read(len(_FILE_MAGIC))
    if magic == _FILE_MAGIC:
        source.seek(0)
        reader = pa.ipc.open_file(source)
        check_column(reader.schema, path, field)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number).select([field])
        return
    # Without this check, a file that was cut off between two batches would seem complete.
    source.seek(max(0, size - len(_END_OF_STREAM)))
    if source.read(len(_END_OF_STREAM)) != _END_OF_STREAM:
        raise pa.ArrowInvalid("the end-of-stream marker is missing")
    source.seek(0)
    with pa.ipc.open_stream(source) as reader:
        check_column(reader.schema, path, field)
        for batch in reader:
            yield batch.select([field])
