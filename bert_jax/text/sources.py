"""Read any mix of files and named datasets as one stream of documents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from bert_jax.storage.locations import num_bytes_of, sha256_of
from bert_jax.storage.urls import ObjectUrl, parse_location
from bert_jax.text.documents import Document, SourceCounts, SourceOptions
from bert_jax.text.files import (
    ARROW_SUFFIXES,
    JSON_LINES_SUFFIXES,
    MDS_SUFFIXES,
    PARQUET_SUFFIXES,
    content_suffix,
    expand_inputs,
    is_file_name,
    is_hub,
    is_tfds,
)
from bert_jax.text.hub_names import pinned_hub
from bert_jax.text.line_files import read_json_lines, read_text

__all__ = [
    "Document",
    "SourceCounts",
    "SourceOptions",
    "expand_inputs",
    "read_documents",
    "source_name",
    "total_bytes",
]


def read_documents(
    inputs: Sequence[str], options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    """Iterate over the documents in the inputs, in an order that depends only on the inputs.

    Memory use depends on `options.max_document_bytes`, not on the size of the inputs.

    Args:
      inputs: files, directories, patterns and TFDS datasets, as in `expand_inputs`.
      options: the options for reading the inputs.
      counts: the counts to update while documents are read. Checksums, if requested, are computed
        from the bytes as they are read or, for Parquet and Arrow, in a second pass.

    Raises:
      ValueError: an input cannot be used. The message gives the file and the line, row or byte.
        Individual bad lines are skipped if `options.on_bad_line` is "skip".
    """
    return _read_all(expand_inputs(inputs), options, counts)


def total_bytes(inputs: Sequence[str], options: SourceOptions | None = None) -> int:
    """Return the total size on disk, in bytes, of the inputs to `read_documents`."""
    options = options or SourceOptions()
    return sum(_input_bytes(name, options) for name in expand_inputs(inputs))


def source_name(name: str, options: SourceOptions) -> str:
    """Return a permanent name for an expanded input: its path, URL or full dataset name."""
    if is_hub(name):
        return pinned_hub(name)
    if is_tfds(name):
        from bert_jax.text.tfds import resolved_tfds

        return resolved_tfds(name, options.tfds_data_dir)
    location = parse_location(name)
    return str(location) if isinstance(location, ObjectUrl) else os.path.abspath(name)


def _input_bytes(name: str, options: SourceOptions) -> int:
    if is_tfds(name):
        from bert_jax.text.tfds import tfds_bytes

        return tfds_bytes(name, options.tfds_data_dir)
    if is_hub(name):
        from bert_jax.text.hub_datasets import hub_bytes

        return hub_bytes(name)
    return num_bytes_of(parse_location(name))


def _read_all(
    names: Sequence[str], options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    for name in names:
        num_bytes, bytes_before = _input_bytes(name, options), counts.bytes_read
        if num_bytes == 0 and is_file_name(name):
            counts.reject_empty_file(options, name, "the file is empty (0 bytes)")
        else:
            documents_before = counts.documents
            yield from _read_hashed(name, options, counts)
            if counts.documents == documents_before:
                counts.reject_empty_file(options, name, "the file contains no usable document")
        counts.bytes_read = bytes_before + num_bytes
        counts.files += 1


def _read_hashed(name: str, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Read a file with `_read_one`, and add its checksum to `counts` if requested."""
    if counts.checksums is None or not is_file_name(name):
        yield from _read_one(name, options, counts)
        return
    # Readers of these formats do not read the bytes in order.
    if content_suffix(Path(name)) in PARQUET_SUFFIXES + ARROW_SUFFIXES:
        yield from _read_one(name, options, counts)
        counts.checksums[name] = sha256_of(parse_location(name))
        return
    hashing, bytes_before = hashlib.sha256(), counts.bytes_read
    counts.hashing = hashing
    yield from _read_one(name, options, counts)
    counts.hashing = None
    # The xz reader stops at the end of its stream and does not read any bytes after it.
    complete = counts.bytes_read - bytes_before == num_bytes_of(parse_location(name))
    counts.checksums[name] = hashing.hexdigest() if complete else sha256_of(parse_location(name))


def _read_one(name: str, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    # TFDS and Arrow are slow to import, so they are imported only if needed.
    if is_tfds(name):
        from bert_jax.text.tfds import read_tfds

        return read_tfds(name, options, counts)
    if is_hub(name):
        from bert_jax.text.hub_datasets import read_hub

        return read_hub(name, options, counts)
    path = parse_location(name)
    suffix = content_suffix(path)
    if suffix in PARQUET_SUFFIXES:
        from bert_jax.text.parquet import read_parquet

        return read_parquet(path, options, counts)
    if suffix in ARROW_SUFFIXES:
        from bert_jax.text.arrow_files import read_arrow

        return read_arrow(path, options, counts)
    if suffix in MDS_SUFFIXES:
        from bert_jax.text.mds import read_mds

        return read_mds(path, options, counts)
    if suffix in JSON_LINES_SUFFIXES:
        return read_json_lines(path, options, counts)
    return read_text(path, options, counts)
