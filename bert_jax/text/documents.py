"""Read documents from plain text and JSON Lines, with the options all readers share."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

from bert_jax.json_files import parse_json
from bert_jax.local_paths import check_local
from bert_jax.text.files import BROKEN_ARCHIVE, Hash, open_stream

logger = logging.getLogger(__name__)

MIN_DOCUMENT_BYTES = 1024
_LOGGED_BAD_LINES = 10  # further ones are only counted: a bad file may hold millions


@dataclass(frozen=True)
class Document:
    """One document: its text, and where it begins ("path:line", "path:row" or "tfds:name[i]")."""

    text: str
    source: str


@dataclass(frozen=True)
class SourceOptions:
    """How inputs are read.

    `text_field` is the JSON field, Parquet column or TFDS feature that holds the text.
    `on_bad_line="skip"` leaves out, and counts, single lines or rows that cannot be used; a
    truncated file or a missing column is an error in any case. A document of more than
    `max_document_bytes` (of UTF-8) is cut into several, which bounds the memory of every reader.
    """

    text_field: str = "text"
    encoding: str = "utf-8"
    on_bad_line: Literal["error", "skip"] = "error"
    max_document_bytes: int = 16 << 20
    tfds_data_dir: str | None = None  # None: TFDS_DATA_DIR, else TFDS's own default

    def __post_init__(self) -> None:
        if not self.text_field:
            raise ValueError("text_field is empty; give the name of the field with the text")
        if self.tfds_data_dir is not None:
            check_local(self.tfds_data_dir, "tfds_data_dir")
        if self.on_bad_line not in ("error", "skip"):
            raise ValueError(f"on_bad_line is {self.on_bad_line!r}; expected 'error' or 'skip'")
        if self.max_document_bytes < MIN_DOCUMENT_BYTES:
            raise ValueError(
                f"max_document_bytes is {self.max_document_bytes}; "
                f"expected at least {MIN_DOCUMENT_BYTES}"
            )
        try:
            ascii_compatible = "\n \r".encode(self.encoding) == b"\n \r"
            codecs.getincrementaldecoder(self.encoding)
        except LookupError:
            raise ValueError(f"encoding {self.encoding!r} is not known to Python") from None
        if codecs.lookup(self.encoding).name == "utf-8-sig":
            raise ValueError(
                f"encoding is {self.encoding!r}; expected 'utf-8', with which a byte order mark is "
                "passed over"
            )
        if not ascii_compatible:
            raise ValueError(
                f"encoding {self.encoding!r} does not write a line end as one byte; "
                "convert the input to UTF-8 first"
            )


@dataclass
class SourceCounts:
    """What has been read so far; the readers add to it as they go.

    `text_bytes` are bytes of document text as UTF-8, `bytes_read` bytes of the inputs on disk
    (compressed as they are), ahead of the last document by at most one read buffer or row group,
    which is close enough for progress and ETA. If `checksums` is a dict, it receives the SHA-256 of
    every file in hex, by file name; `hashing` belongs to the file that is being read.
    `logged` says whether skipped input is logged; a second reading does not repeat these lines.
    """

    documents: int = 0
    text_bytes: int = 0
    bytes_read: int = 0
    files: int = 0
    bad_lines: int = 0
    empty_documents: int = 0
    empty_files: int = 0
    split_documents: int = 0
    checksums: dict[str, str] | None = None
    hashing: Hash | None = None
    logged: bool = True

    def reject(self, options: SourceOptions, place: str, problem: str) -> None:
        """Raises ValueError for an unusable line or row, or counts it if the options say so."""
        if options.on_bad_line == "error":
            raise ValueError(
                f"{place}: {problem}. Fix the input, or skip and count such lines with "
                "--on-bad-line skip."
            )
        self.bad_lines += 1
        if self.logged and self.bad_lines <= _LOGGED_BAD_LINES:
            logger.warning("skipped %s: %s", place, problem)

    def reject_empty_file(self, options: SourceOptions, path: str, problem: str) -> None:
        """Raises ValueError for a file without a document, or counts it if the options say so."""
        if options.on_bad_line == "error":
            raise ValueError(
                f"{path}: {problem}. Leave the file out of the inputs, or have it counted and "
                "passed over with --on-bad-line skip"
            )
        self.empty_files += 1
        if self.logged:
            logger.warning("skipped %s: %s", path, problem)


def checked_documents(
    text: str, place: str, options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    """Yields the document of one row: none if it is empty, several if it is over the limit.

    The text loses surrounding white space. A lone surrogate (JSON's "\\ud800") has no UTF-8 form
    and no tokenizer takes it: a bad line.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        counts.reject(options, place, f"the text holds a lone surrogate at character {error.start}")
        return
    if len(data) <= options.max_document_bytes:
        yield from counted_document(text, place, counts)
        return
    counts.split_documents += 1
    start = 0
    while start < len(data):
        end = cut_point(data, start, options.max_document_bytes)
        yield from counted_document(data[start:end].decode("utf-8"), place, counts)
        start = end


def counted_document(text: str, place: str, counts: SourceCounts) -> Iterator[Document]:
    """Yields the document, stripped of surrounding white space; nothing if that leaves nothing."""
    text = text.strip()
    if not text:
        counts.empty_documents += 1
        return
    counts.documents += 1
    counts.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8"))
    yield Document(text, place)


def cut_point(data: bytes, start: int, limit: int) -> int:
    """Where the piece of UTF-8 `data` that begins at `start` ends, at most `limit` bytes on.

    After the last line end within the limit; without one after the last space; without one
    between two characters.
    """
    end = start + limit
    if end >= len(data):
        return len(data)
    for boundary in (b"\n", b" "):
        position = data.rfind(boundary, start, end)
        if position > start:
            return position + 1
    while data[end] & 0xC0 == 0x80:  # a continuation byte: the character began before it
        end -= 1
    return end


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
