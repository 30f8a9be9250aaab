"""Read documents from files of lines: plain text and JSON Lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import IO, NamedTuple

from bert_jax.json_files import json_kind, parse_json
from bert_jax.storage.urls import Location
from bert_jax.text.archives import BROKEN_ARCHIVE, open_stream
from bert_jax.text.documents import (
    Document,
    SourceCounts,
    SourceOptions,
    checked_documents,
    counted_document,
    cut_point,
)

_LINE_PART_BYTES = 1 << 20
# A JSON string uses up to 6 bytes (\u0041) for one character, and other fields take up space too.
_JSON_LINE_FACTOR = 8


class _LinePart(NamedTuple):
    """A line, or one part of a line that is too long for a single read."""

    # The line number, counted from 1.
    number: int
    # The position of the first byte in the decompressed file.
    offset: int
    data: bytes
    begins_line: bool
    ends_line: bool


def read_text(path: Location, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the documents of a plain-text file, which are separated by blank lines.

    A document over the size limit is split after a newline or, if there is none, after a space.

    Raises:
      ValueError: the file is a truncated archive, or a line cannot be decoded and
        `options.on_bad_line` is "error". The message gives the file, line and byte.
    """
    limit = options.max_document_bytes
    lines: list[str] = []
    num_bytes, place, cut = 0, "", False
    for number, text in _decoded_lines(path, options, counts):
        if text is None:
            if lines:
                yield from counted_document("".join(lines), place, counts)
            lines, num_bytes, cut = [], 0, False
            continue
        if not lines:
            place = f"{path}:{number}"
        lines.append(text)
        num_bytes += len(text) if text.isascii() else len(text.encode("utf-8"))
        while num_bytes > limit:
            counts.split_documents += not cut
            cut = True
            data = "".join(lines).encode("utf-8")
            end = cut_point(data, 0, limit)
            yield from counted_document(data[:end].decode("utf-8"), place, counts)
            lines, num_bytes = [data[end:].decode("utf-8")], len(data) - end
    if lines:
        yield from counted_document("".join(lines), place, counts)


def _decoded_lines(
    path: Location, options: SourceOptions, counts: SourceCounts
) -> Iterator[tuple[int, str | None]]:
    """Yield (line number, text) for each line or part of a long line.

    The text of a blank line is None.
    """
    decoder = codecs.getincrementaldecoder(options.encoding)()
    # Whether to skip the rest of a line that could not be decoded.
    skipping = False
    with open_stream(path, counts) as stream:
        for part in _line_parts(stream, path, _LINE_PART_BYTES):
            skipping = skipping and not part.begins_line
            if skipping:
                continue
            try:
                text = decoder.decode(part.data, final=part.ends_line)
            except UnicodeDecodeError as error:
                decoder.reset()
                skipping = True
                counts.reject(options, f"{path}:{part.number}", _undecodable(part, error))
                # Earlier parts of this line were already yielded, so end the line.
                if not part.begins_line:
                    yield part.number, "\n"
                continue
            if part.begins_line and part.ends_line and not text.strip():
                yield part.number, None
            else:
                yield part.number, text[:-2] + "\n" if text.endswith("\r\n") else text


def read_json_lines(
    path: Location, options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    """Yield the document in the text field of each line in a JSON Lines file.

    Blank lines are ignored.

    Raises:
      ValueError: a line is not a JSON object with a text field and `options.on_bad_line` is
        "error", or no object in the file has the field. The message gives the file and line.
    """
    num_objects = num_with_field = 0
    fields: list[str] = []
    for number, text in _whole_lines(path, options, counts):
        place = f"{path}:{number}"
        try:
            record = parse_json(text)
        except ValueError as error:
            counts.reject(options, place, f"not valid JSON: {error}")
            continue
        if not isinstance(record, dict):
            kind = json_kind(record)
            counts.reject(options, place, f"expected a JSON object on each line, not {kind}")
            continue
        num_objects += 1
        if options.text_field not in record:
            fields = list(record)
            missing = f"no field {options.text_field!r}; the fields are {_listed(fields)}"
            counts.reject(options, place, f"{missing} (choose one with --text-field)")
            continue
        num_with_field += 1
        value = record[options.text_field]
        if not isinstance(value, str):
            kind = json_kind(value)
            counts.reject(options, place, f"field {options.text_field!r} is {kind}, not a string")
            continue
        yield from checked_documents(value, place, options, counts)
    if num_objects and not num_with_field:
        raise ValueError(
            f"{path}: no line has the field {options.text_field!r}; the fields of the last line "
            f"are {_listed(fields)}. Choose the field with --text-field."
        )


def _listed(fields: list[str]) -> str:
    return ", ".join(map(repr, fields[:20])) or "none"


def _whole_lines(
    path: Location, options: SourceOptions, counts: SourceCounts
) -> Iterator[tuple[int, str]]:
    limit = _JSON_LINE_FACTOR * options.max_document_bytes
    with open_stream(path, counts) as stream:
        for part in _line_parts(stream, path, limit):
            if not (part.begins_line and part.ends_line):
                if part.begins_line:
                    counts.reject(
                        options, f"{path}:{part.number}", f"the line is longer than {limit} bytes"
                    )
                continue
            try:
                text = part.data.decode(options.encoding)
            except UnicodeDecodeError as error:
                counts.reject(options, f"{path}:{part.number}", _undecodable(part, error))
                continue
            if text := text.strip():
                yield part.number, text


def _line_parts(stream: IO[bytes], path: Location, limit: int) -> Iterator[_LinePart]:
    number, offset, begins_line = 1, 0, True
    while True:
        try:
            data = stream.readline(limit)
            # The last line of the file may end without a newline.
            ends_line = data.endswith(b"\n") or len(data) < limit or not stream.peek(1)  # type: ignore[attr-defined]
        except BROKEN_ARCHIVE as error:
            raise ValueError(
                f"{path}: the {path.suffix} archive is truncated or damaged: {error} (after line "
                f"{number - 1}, {offset} decompressed bytes). Download or write the file again."
            ) from error
        if not data:
            return
        if offset == 0 and data.startswith(codecs.BOM_UTF8):
            offset, data = len(codecs.BOM_UTF8), data.removeprefix(codecs.BOM_UTF8)
        yield _LinePart(number, offset, data, begins_line, ends_line)
        offset += len(data)
        number += ends_line
        begins_line = ends_line


def _undecodable(part: _LinePart, error: UnicodeDecodeError) -> str:
    # The decoder may have kept the beginning of a character from the previous part. If so, it
    # reports positions relative to the first of these bytes.
    start = error.start - (len(error.object) - len(part.data))
    return (
        f"cannot decode byte 0x{error.object[error.start]:02x} as {error.encoding} "
        f"at byte {part.offset + start} of the file ({error.reason})"
    )
