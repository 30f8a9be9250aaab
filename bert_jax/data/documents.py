"""What the readers of raw text share: a document, how to read, and what was read."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bert_jax.data.compression import Hash
from bert_jax.local_paths import check_local

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
