"""Define documents, and the options and counts shared by all readers of raw text."""

from __future__ import annotations

import codecs
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from bert_jax.field_options import option
from bert_jax.local_paths import check_local
from bert_jax.text.archives import Hash

logger = logging.getLogger(__name__)

MIN_DOCUMENT_BYTES = 1024
# Further bad lines are only counted, since a bad file may have millions.
_LOGGED_BAD_LINES = 10


@dataclass(frozen=True)
class Document:
    """A document and its location in the input.

    Attributes:
      text: the document's text.
      source: where the document begins, as "path:line", "path:row N", "tfds:name[i]" or
        "hf:name[i]".
    """

    text: str
    source: str


@dataclass(frozen=True)
class SourceOptions:
    """Options shared by all readers.

    Attributes:
      text_field: the JSON field, column or TFDS feature that contains the text.
      encoding: the encoding of plain text and JSON Lines.
      on_bad_line: whether a line or row that cannot be used raises an error ("error") or is skipped
        and counted ("skip"). A truncated file or a missing column is always an error.
      max_document_bytes: the maximum size of a document in UTF-8 bytes, which limits how much
        memory a reader needs. Longer documents are split.
      tfds_data_dir: the TFDS data directory. If None, the environment variable TFDS_DATA_DIR is
        used or, if that is not set, TFDS's default.
    """

    text_field: str = option(
        "text",
        "JSON field, column or TFDS feature that contains the text",
        metavar="NAME",
        any_text=True,
    )
    encoding: str = option(
        "utf-8",
        "encoding of plain text and JSON Lines; other formats are always UTF-8",
        metavar="NAME",
    )
    on_bad_line: Literal["error", "skip"] = option(
        "error",
        "how to handle unusable lines and empty files: stop with an error, or skip and count them",
    )
    max_document_bytes: int = 16 << 20
    tfds_data_dir: str | None = option(
        None,
        "directory that contains TFDS data sets (default: TFDS_DATA_DIR, else "
        "~/tensorflow_datasets)",
        metavar="DIR",
    )

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
        """Count an unusable line or row if `options.on_bad_line` is "skip".

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
        """Count a file that contains no documents, if `options.on_bad_line` is "skip".

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
    # Move back from a continuation byte, so that no character is cut in two.
    while data[end] & 0xC0 == 0x80:
        end -= 1
    return end
