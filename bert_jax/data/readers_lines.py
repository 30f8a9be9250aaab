"""Readers of files made of lines: plain text and JSON Lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from bert_jax.data.compression import BROKEN_ARCHIVE, open_stream
from bert_jax.data.documents import (
    Document,
    SourceCounts,
    SourceOptions,
    checked_documents,
    counted_document,
    cut_point,
)
from bert_jax.json_files import parse_json

_PIECE_BYTES = 1 << 20
# A JSON string spends up to 6 bytes (\u0041) on a character, and the other fields want room too.
_JSON_LINE_FACTOR = 8


class _Piece(NamedTuple):
    """A line, or a part of one that is longer than the reader takes at once."""

    number: int  # of the line, from 1
    offset: int  # of the piece's first byte in the unpacked file
    data: bytes
    begins: bool  # at the line's beginning
    ends: bool  # at the line's end


def read_text(path: Path, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yields the documents of a plain-text file; a blank line ends a document.

    A document over the limit is cut after a line end (without one, after a space). ValueError
    names file, line and byte of what cannot be decoded, and a truncated archive.
    """
    limit = options.max_document_bytes
    parts: list[str] = []
    num_bytes, place, cut = 0, "", False
    for number, text in _text_pieces(path, options, counts):
        if text is None:
            if parts:
                yield from counted_document("".join(parts), place, counts)
            parts, num_bytes, cut = [], 0, False
            continue
        if not parts:
            place = f"{path}:{number}"
        parts.append(text)
        num_bytes += len(text) if text.isascii() else len(text.encode("utf-8"))
        while num_bytes > limit:
            counts.split_documents += not cut
            cut = True
            data = "".join(parts).encode("utf-8")
            end = cut_point(data, 0, limit)
            yield from counted_document(data[:end].decode("utf-8"), place, counts)
            parts, num_bytes = [data[end:].decode("utf-8")], len(data) - end
    if parts:
        yield from counted_document("".join(parts), place, counts)


def _text_pieces(
    path: Path, options: SourceOptions, counts: SourceCounts
) -> Iterator[tuple[int, str | None]]:
    """Yields (line number, decoded line or part of a very long one); None for a blank line."""
    decoder = codecs.getincrementaldecoder(options.encoding)()
    dropping = False  # what is left of a line that could not be decoded
    with open_stream(path, counts) as stream:
        for piece in _pieces(stream, path, _PIECE_BYTES):
            dropping = dropping and not piece.begins
            if dropping:
                continue
            try:
                text = decoder.decode(piece.data, final=piece.ends)
            except UnicodeDecodeError as error:
                decoder.reset()
                dropping = True
                counts.reject(options, f"{path}:{piece.number}", _undecodable(piece, error))
                if not piece.begins:  # what was read of the line is kept, and must not join on
                    yield piece.number, "\n"
                continue
            if piece.begins and piece.ends and not text.strip():
                yield piece.number, None
            else:
                yield piece.number, text[:-2] + "\n" if text.endswith("\r\n") else text


def read_json_lines(path: Path, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yields the document in the text field of each line of a JSON Lines file.

    Blank lines mean nothing. ValueError names file and line of what is not JSON, not an object,
    or without the text; a file in which no object has the field is refused whatever the options.
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
            kind = type(record).__name__
            counts.reject(options, place, f"a JSON {kind}, expected one object on each line")
            continue
        num_objects += 1
        if options.text_field not in record:
            fields = list(record)
            missing = _missing_field(options.text_field, fields)
            counts.reject(options, place, f"{missing} (--text-field names another)")
            continue
        num_with_field += 1
        value = record[options.text_field]
        if not isinstance(value, str):
            kind = "null" if value is None else f"a {type(value).__name__}"
            counts.reject(options, place, f"field {options.text_field!r} is {kind}, not a string")
            continue
        yield from checked_documents(value, place, options, counts)
    if num_objects and not num_with_field:
        raise ValueError(
            f"{path}: {_missing_field(options.text_field, fields)}, nor does any other line. "
            "Name the field with --text-field"
        )


def _missing_field(field: str, fields: list[str]) -> str:
    return f"no field {field!r}; its fields are {', '.join(map(repr, fields[:20])) or 'none'}"


def _whole_lines(
    path: Path, options: SourceOptions, counts: SourceCounts
) -> Iterator[tuple[int, str]]:
    limit = _JSON_LINE_FACTOR * options.max_document_bytes
    with open_stream(path, counts) as stream:
        for piece in _pieces(stream, path, limit):
            if not (piece.begins and piece.ends):
                if piece.begins:
                    counts.reject(
                        options, f"{path}:{piece.number}", f"the line is longer than {limit} bytes"
                    )
                continue
            try:
                text = piece.data.decode(options.encoding)
            except UnicodeDecodeError as error:
                counts.reject(options, f"{path}:{piece.number}", _undecodable(piece, error))
                continue
            if text := text.strip():
                yield piece.number, text


def _pieces(stream: IO[bytes], path: Path, limit: int) -> Iterator[_Piece]:
    number, offset, begins = 1, 0, True
    while True:
        try:
            data = stream.readline(limit)
            # Only the next byte tells whether a piece without a line end is the file's last.
            ends = data.endswith(b"\n") or len(data) < limit or not stream.peek(1)  # type: ignore[attr-defined]
        except BROKEN_ARCHIVE as error:
            raise ValueError(
                f"{path}: the {path.suffix} archive is truncated or damaged: {error} (after line "
                f"{number - 1}, {offset} bytes unpacked). Fetch or write the file again"
            ) from error
        if not data:
            return
        if offset == 0 and data.startswith(codecs.BOM_UTF8):
            offset, data = len(codecs.BOM_UTF8), data.removeprefix(codecs.BOM_UTF8)
        yield _Piece(number, offset, data, begins, ends)
        offset += len(data)
        number += ends
        begins = ends


def _undecodable(piece: _Piece, error: UnicodeDecodeError) -> str:
    # An incremental decoder counts from the bytes it kept of the piece before.
    start = error.start - (len(error.object) - len(piece.data))
    return (
        f"cannot decode byte 0x{error.object[error.start]:02x} as {error.encoding} "
        f"at byte {piece.offset + start} of the file ({error.reason})"
    )
