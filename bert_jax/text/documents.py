"""Read documents from plain text and JSON Lines, and define the options shared by all readers."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, NamedTuple

from bert_jax.json_files import json_kind, parse_json
from bert_jax.local_paths import check_local
from bert_jax.text.files import BROKEN_ARCHIVE, Hash, open_stream

logger = logging.getLogger(__name__)

MIN_DOCUMENT_BYTES = 1024
_LOGGED_BAD_LINES = 10  # further lines are only counted, since a bad file may have millions


@dataclass(frozen=True)
class Document:
    """A document and where it comes from.

    Attributes:
      text: the document's text.
      source: where the document begins, as "path:line", "path:row N" or "tfds:name[i]".
    """

    text: str
    source: str


@dataclass(frozen=True)
class SourceOptions:
    """Options shared by all readers.

    Attributes:
      text_field: the JSON field, Parquet column or TFDS feature that contains the text.
      encoding: the encoding of plain text and JSON Lines.
      on_bad_line: whether a line or row that cannot be used raises an error ("error") or is skipped
        and counted ("skip"). A truncated file or a missing column is always an error.
      max_document_bytes: the maximum size of a document in UTF-8 bytes, which limits how much
        memory a reader needs. Longer documents are split.
      tfds_data_dir: the TFDS data directory. If None, the environment variable TFDS_DATA_DIR is
        used or, if that is not set, TFDS's default.
    """

    text_field: str = "text"
    encoding: str = "utf-8"
    on_bad_line: Literal["error", "skip"] = "error"
    max_document_bytes: int = 16 << 20
    tfds_data_dir: str | None = None

    def __post_init__(self) -> None:
        if not self.text_field:
            raise ValueError(
                "text_field='': expected the name of the field that contains the text."
            )
        if self.tfds_data_dir is not None:
            check_local(self.tfds_data_dir, "tfds_data_dir")
        if self.on_bad_line not in ("error", "skip"):
            raise ValueError(f"on_bad_line={self.on_bad_line!r}: expected 'error' or 'skip'.")
        if self.max_document_bytes < MIN_DOCUMENT_BYTES:
            raise ValueError(
                f"max_document_bytes={self.max_document_bytes}: "
                f"expected at least {MIN_DOCUMENT_BYTES}."
            )
        try:
            ascii_compatible = "\n \r".encode(self.encoding) == b"\n \r"
            codecs.getincrementaldecoder(self.encoding)
        except LookupError:
            raise ValueError(f"encoding={self.encoding!r}: Python has no such codec.") from None
        if codecs.lookup(self.encoding).name == "utf-8-sig":
            raise ValueError(
                f"encoding={self.encoding!r}: use 'utf-8', which also skips a byte order mark."
            )
        if not ascii_compatible:
            raise ValueError(
                f"encoding={self.encoding!r}: a newline is not a single byte in this encoding. "
                "Convert the input to UTF-8 first."
            )


@dataclass
class SourceCounts:
    """Running counts of the input read so far, updated by the readers.

    Attributes:
      documents: the number of documents yielded.
      text_bytes: the size of their text in UTF-8 bytes.
      bytes_read: the number of bytes read from disk, before decompression. It may run ahead of the
        last document by one read buffer or row group, but is accurate enough for showing progress
        and the time left.
      files: the number of inputs read to the end.
      bad_lines: the number of skipped lines and rows.
      empty_documents: the number of documents without any text, which are not yielded.
      empty_files: the number of files skipped because they contain no document.
      split_documents: the number of documents that exceeded the size limit and were split.
      checksums: a dict to which the name and hex SHA-256 of every file are added; None if checksums
        are not needed.
      hashing: the incremental checksum of the file that is being read.
      logged: whether to log skipped input. Set it to False in a second pass, so that nothing is
        logged twice.
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
        """Count an unusable line or row if the options say to skip it.

        Raises:
          ValueError: `options.on_bad_line` is "error".
        """
        if options.on_bad_line == "error":
            raise ValueError(
                f"{place}: {problem}. Fix the input, or skip and count such lines with "
                "--on-bad-line skip."
            )
        self.bad_lines += 1
        if self.logged and self.bad_lines <= _LOGGED_BAD_LINES:
            logger.warning("skipped %s: %s", place, problem)

    def reject_empty_file(self, options: SourceOptions, path: str, problem: str) -> None:
        """Count a file that contains no documents, if the options say to skip bad lines.

        Raises:
          ValueError: `options.on_bad_line` is "error".
        """
        if options.on_bad_line == "error":
            raise ValueError(
                f"{path}: {problem}. Remove the file from the inputs, or skip and count such files "
                "with --on-bad-line skip."
            )
        self.empty_files += 1
        if self.logged:
            logger.warning("skipped %s: %s", path, problem)


def checked_documents(
    text: str, place: str, options: SourceOptions, counts: SourceCounts
) -> Iterator[Document]:
    r"""Yield a row's text as documents: none if it is empty, several if it exceeds the size limit.

    Surrounding white space is stripped. A text with a lone surrogate (JSON's "\ud800") counts as a
    bad line, because it cannot be encoded as UTF-8 and no tokenizer accepts it.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        counts.reject(options, place, f"the text has a lone surrogate at character {error.start}")
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
    """Strip a text and yield it as a document, or yield nothing if it is empty."""
    text = text.strip()
    if not text:
        counts.empty_documents += 1
        return
    counts.documents += 1
    counts.text_bytes += len(text) if text.isascii() else len(text.encode("utf-8"))
    yield Document(text, place)


def cut_point(data: bytes, start: int, limit: int) -> int:
    """Return where to cut UTF-8 text so that the part from `start` has at most `limit` bytes.

    The text is cut after the last newline in this part or, if there is none, after the last space.
    If there is no space either, it is cut between two characters.
    """
    end = start + limit
    if end >= len(data):
        return len(data)
    for boundary in (b"\n", b" "):
        position = data.rfind(boundary, start, end)
        if position > start:
            return position + 1
    while data[end] & 0xC0 == 0x80:  # a continuation byte, inside a character
        end -= 1
    return end


_LINE_PART_BYTES = 1 << 20
# A JSON string uses up to 6 bytes (\u0041) for one character, and other fields take up space too.
_JSON_LINE_FACTOR = 8


class _LinePart(NamedTuple):
    """A line, or one part of a line that is too long for a single read."""

    number: int  # line number, from 1
    offset: int  # position of the first byte in the decompressed file
    data: bytes
    begins_line: bool
    ends_line: bool


def read_text(path: Path, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the documents of a plain-text file, which are separated by blank lines.

    A document over the size limit is split after a newline or, if there is none, after a space.

    Raises:
      ValueError: the file is a truncated archive, or a line cannot be decoded and `options` do not
        say to skip it. The message names the file, line and byte.
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
    path: Path, options: SourceOptions, counts: SourceCounts
) -> Iterator[tuple[int, str | None]]:
    """Yield (line number, text) for each line or part of a long line, with None for blank lines."""
    decoder = codecs.getincrementaldecoder(options.encoding)()
    skipping = False  # whether to skip the rest of a line that could not be decoded
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
                if not part.begins_line:  # end the part of the line that was already yielded
                    yield part.number, "\n"
                continue
            if part.begins_line and part.ends_line and not text.strip():
                yield part.number, None
            else:
                yield part.number, text[:-2] + "\n" if text.endswith("\r\n") else text


def read_json_lines(path: Path, options: SourceOptions, counts: SourceCounts) -> Iterator[Document]:
    """Yield the document in the text field of each line in a JSON Lines file.

    Blank lines are ignored.

    Raises:
      ValueError: a line is not a JSON object with a text field (unless `options` say to skip such
        lines), or no object in the file has the field. The message names the file and line.
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
    path: Path, options: SourceOptions, counts: SourceCounts
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


def _line_parts(stream: IO[bytes], path: Path, limit: int) -> Iterator[_LinePart]:
    number, offset, begins_line = 1, 0, True
    while True:
        try:
            data = stream.readline(limit)
            # At the end of the file, a part ends its line even if there is no newline.
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
    # An incremental decoder reports positions relative to the first byte that it kept from the
    # previous part.
    start = error.start - (len(error.object) - len(part.data))
    return (
        f"cannot decode byte 0x{error.object[error.start]:02x} as {error.encoding} "
        f"at byte {part.offset + start} of the file ({error.reason})"
    )
