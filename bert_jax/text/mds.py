"""Read the text column of MDS shards, which the library mosaicml-streaming writes.

The library itself cannot be installed together with this package, because it requires older
versions of NumPy, transformers and xxhash. The layout of a shard is documented in the
library's "Dataset format" page; all integers are little-endian::

    number of samples                   4 bytes
    offsets of all samples and the end  4 bytes each, from the beginning of the shard
    JSON with the columns               up to the first sample
    samples                             for each, the sizes of its columns that have no fixed size
                                        (4 bytes each), and then the values of all columns
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from bert_jax.json_files import parse_json
from bert_jax.storage.urls import Location
from bert_jax.text.archives import BROKEN_ARCHIVE, CountingFile, ReadCounter, ZstdFile
from bert_jax.text.arrow_columns import is_system_error, row_documents
from bert_jax.text.documents import Document, SourceCounts, SourceOptions

_WORD = np.dtype("<u4")
_VERSION = 2
_TEXT_ENCODINGS = ("str", "bytes", "json")
# An offset has 32 bits, so this is the largest possible shard.
_MAX_SHARD_BYTES = 1 << 32
_BUFFER_BYTES = 1 << 20


class _DamagedError(Exception):
    """The bytes of a shard do not follow the layout."""


@dataclass(frozen=True)
class _Layout:
    """The beginning of a shard.

    Attributes:
      offsets: [num_samples + 1] the offset of each sample, followed by the end of the last one.
      sizes: the fixed size of each column in bytes, or None for a column without one.
      column: the index of the text column.
      encoding: the encoding of the text column.
    """

    offsets: NDArray[np.int64]
    sizes: tuple[int | None, ...]
    column: int
    encoding: str

    def text(self, sample: bytes) -> bytes | None:
        """Return the UTF-8 bytes of a sample's text, or None if its JSON value is null."""
        num_variable = sum(size is None for size in self.sizes)
        head = num_variable * _WORD.itemsize
        if len(sample) < head:
            raise _DamagedError("a sample is too short")
        given = iter(np.frombuffer(sample, _WORD, num_variable).tolist())
        lengths = [next(given) if size is None else size for size in self.sizes]
        if head + sum(lengths) != len(sample):
            raise _DamagedError("the sizes of a sample's columns do not add up to its own size")
        begin = head + sum(lengths[: self.column])
        value = sample[begin : begin + lengths[self.column]]
        if self.encoding != "json":
            return value
        try:
            text = parse_json(value.decode("utf-8"))
        except ValueError as error:
            raise _DamagedError(f"a value is not JSON: {error}") from error
        if text is None:
            return None
        if not isinstance(text, str):
            raise _DamagedError(f"a value is JSON of type {type(text).__name__}, not a string")
        return text.encode("utf-8", "surrogatepass")


def read_mds(path: Location, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the document in each sample's text column, reading the shard from beginning to end.

    Samples are numbered from 0 in every shard. Individual samples whose text is null or not UTF-8
    are skipped if `options.on_bad_line` is "skip".

    Raises:
      ValueError: the shard is incomplete or has no such column, the column does not contain text,
        or a sample cannot be used and `options.on_bad_line` is "error".
    """
    row = 0
    try:
        with _opened(path, counts) as stream:
            layout = _read_layout(stream, path, options.text_field)
            for size in np.diff(layout.offsets).tolist():
                value = layout.text(_exactly(stream, size))
                yield from row_documents(value, f"{path}:row {row}", options, counts)
                row += 1
            if stream.read(1):
                raise _DamagedError("there are bytes after the last sample")
    except (_DamagedError, pa.ArrowException, OSError, *BROKEN_ARCHIVE) as error:
        if isinstance(error, OSError) and is_system_error(error):
            raise
        raise ValueError(
            f"{path}: not a complete MDS shard (stopped at row {row}): "
            f"{str(error).rstrip('.')}. Download or write the shard again."
        ) from error


@contextmanager
def _opened(path: Location, counter: ReadCounter) -> Iterator[IO[bytes]]:
    """Open a shard as a stream of its decompressed bytes; see `open_stream`."""
    with ExitStack() as stack:
        raw: io.RawIOBase = stack.enter_context(CountingFile(path, counter))
        source: Any
        match path.suffix.lower():
            case ".br":
                file = stack.enter_context(pa.PythonFile(raw, mode="r"))
                source = pa.CompressedInputStream(file, "brotli")
            case ".bz2":
                source = io.BufferedReader(bz2.BZ2File(raw), _BUFFER_BYTES)
            case ".gz":
                source = io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES)
            case ".snappy":
                source = io.BytesIO(_without_snappy(raw.readall()))
            case ".zstd":
                source = io.BufferedReader(ZstdFile(raw, path), _BUFFER_BYTES)
            case _:
                source = io.BufferedReader(raw, _BUFFER_BYTES)
        yield stack.enter_context(source)


def _without_snappy(data: bytes) -> bytes:
    """Decompress a Snappy block, which begins with its decompressed size as a varint."""
    size = 0
    for number, byte in enumerate(data[:5]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            break
    if not data or size > _MAX_SHARD_BYTES:
        raise _DamagedError("not a Snappy block")
    return bytes(pa.decompress(data, decompressed_size=size, codec="snappy", asbytes=True))


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise _DamagedError("it ends within a sample or before the first one")
    return data


def _read_layout(stream: IO[bytes], path: Location, field: str) -> _Layout:
    (num_samples,) = np.frombuffer(_exactly(stream, _WORD.itemsize), _WORD).tolist()
    offsets = np.frombuffer(_exactly(stream, (num_samples + 1) * _WORD.itemsize), _WORD).astype(
        np.int64
    )
    begin = (num_samples + 2) * _WORD.itemsize
    if offsets[0] < begin or (np.diff(offsets) < 0).any():
        raise _DamagedError("the offsets of its samples are not ascending")
    try:
        columns = json.loads(_exactly(stream, int(offsets[0]) - begin))
        form, version = columns["format"], columns["version"]
        names, encodings = columns["column_names"], columns["column_encodings"]
        sizes = tuple(size or None for size in columns["column_sizes"])
    except (ValueError, KeyError, TypeError) as error:
        raise _DamagedError("it contains no description of its columns") from error
    if (form, version) != ("mds", _VERSION):
        raise ValueError(f"{path}: has format {form} {version}; expected mds {_VERSION}.")
    if field not in names:
        raise ValueError(
            f"{path}: no column {field!r}; the columns are {', '.join(map(repr, names))}. "
            "Choose the column with --text-field."
        )
    column = names.index(field)
    if encodings[column] not in _TEXT_ENCODINGS:
        raise ValueError(
            f"{path}: column {field!r} has the encoding {encodings[column]}; expected "
            f"{', '.join(_TEXT_ENCODINGS)}."
        )
    return _Layout(offsets, sizes, column, encodings[column])
