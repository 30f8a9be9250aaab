"""Find the files that contain a task's splits, and read their lines and IDs."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, overload

from bert_jax.corpus.document_stream import document_digest, folded_digest
from bert_jax.storage.errors import naming_store_errors
from bert_jax.storage.objects import find
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.text.archives import BROKEN_ARCHIVE, COMPRESSIONS, open_stream
from bert_jax.text.documents import SourceCounts
from bert_jax.text.files import is_tfds
from bert_jax.text.tfds import parse_tfds

# The maximum length of a line, the same as the default limit for a document in a corpus. Lines are
# read before they are checked, and a 200 MB line would take gigabytes of memory.
MAX_LINE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_BEGINNING_BYTES = 100


class LongLine(bytes):
    """The beginning of a line that is too long. `num_bytes` is the length of the whole line."""

    num_bytes: int

    def problem(self, limit: int) -> str:
        """Describe the problem, for a message that begins with the line's location."""
        return (
            f"the line has {self.num_bytes:,} bytes, but at most {limit:,} are allowed. Split its "
            "text, "
            "or check whether line feeds are missing"
        )


def find_file(path: str | Location) -> Location:
    """Return the path, or the path of a compressed version ("dev.tsv.xz") if there is no such file.

    Raises:
        ValueError: neither file exists.
        StorageError: the bucket cannot be reached.
    """
    file = _first_existing(path)
    if file is None:
        raise ValueError(
            f"{parse_location(path)}: no such file, with or without one of the extensions "
            f"{', '.join(COMPRESSIONS)}"
        )
    return file


def has_file(path: str | Location) -> bool:
    """Return whether a file exists, compressed or not."""
    return _first_existing(path) is not None


def _first_existing(path: str | Location) -> Location | None:
    plain = parse_location(path)
    if isinstance(plain, ObjectUrl):
        with naming_store_errors("", plain):
            urls = (plain.parent / f"{plain.name}{suffix}" for suffix in ("", *COMPRESSIONS))
            return next((url for url in urls if find(url) is not None), None)
    compressed = (plain.with_name(plain.name + suffix) for suffix in COMPRESSIONS)
    return next((path for path in (plain, *compressed) if path.is_file()), None)


def file_lines(path: Location) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, including line endings but without a byte-order mark.

    Only a line feed ends a line.

    Raises:
        ValueError: a line is not UTF-8 or is longer than `MAX_LINE_BYTES`, or the file is a damaged
            archive. The message gives the file and line.
    """
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_lines(stream, str(path))


def stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a stream; see `file_lines`. `name` is the stream's name in messages."""
    for number, data in enumerate(stream_bytes(stream, name), start=1):
        if isinstance(data, LongLine):
            raise ValueError(f"{name}:{number}: {data.problem(MAX_LINE_BYTES)}")
        try:
            yield decode_line(data)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None


def file_bytes(path: Location, limit: int) -> Iterator[bytes]:
    """Yield the undecoded lines of a file; see `stream_bytes`."""
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_bytes(stream, str(path), limit)


def decode_line(data: bytes) -> str:
    """Decode a line.

    Raises:
        ValueError: the line is not UTF-8.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 ({error.reason}). Convert the file to "
            "UTF-8"
        ) from None


def stream_bytes(stream: IO[bytes], name: str, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the undecoded lines of a stream, or a `LongLine` if a line exceeds `limit` bytes.

    Args:
        stream: the stream to read.
        name: the name of the stream in messages.
        limit: the maximum number of bytes in a line.

    Raises:
        ValueError: the stream is a damaged archive.
    """
    number = 0
    while True:
        try:
            data = stream.readline(limit + 1)
            if len(data) > limit and not data.endswith(b"\n"):
                data = _skip_rest(stream, data)
        except BROKEN_ARCHIVE as error:
            raise ValueError(
                f"{name}:{number + 1}: the {Path(name).suffix} archive is truncated or damaged: "
                f"{error}. Download or write the file again"
            ) from error
        if not data:
            return
        number += 1
        if number == 1 and not isinstance(data, LongLine):
            data = data.removeprefix(codecs.BOM_UTF8)
        yield data


def _skip_rest(stream: IO[bytes], data: bytes) -> LongLine:
    line = LongLine(data[:_BEGINNING_BYTES].removeprefix(codecs.BOM_UTF8))
    line.num_bytes = len(data)
    while piece := stream.readline(_PIECE_BYTES):
        line.num_bytes += len(piece)
        if piece.endswith(b"\n"):
            break
    return line


class WordLocations(Sequence[Sequence[str]]):
    """The locations ("file:line") of words, [sentences][words], stored in 8 bytes per word."""

    def __init__(self, file: Location):
        self._file = file
        self._lines: list[array[int]] = []

    def append(self, lines: Iterable[int]) -> None:
        """Append a sentence, given the line number of each word, counted from 1."""
        self._lines.append(array("q", lines))

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, index: int) -> list[str]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[str]]: ...
    def __getitem__(self, index: int | slice) -> list[str] | list[list[str]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return [f"{self._file}:{line}" for line in self._lines[index]]


Split = Literal["train", "validation", "test"]


def check_paths(train: str, validation: str, test: str) -> None:
    """Raise ValueError for a task without files, or one that is evaluated on TFDS's train split."""
    if not (train or validation or test):
        raise ValueError("train, validation and test are all empty. Set at least one of them")
    for split, path in (("validation", validation), ("test", test)):
        if is_tfds(path) and parse_tfds(path).split == "train":
            raise ValueError(
                f"{split}={path!r}: this is the train split. Use a different split, such as "
                f"{path.removesuffix(':train')}:{split}"
            )


def split_path(files: object, split: Split) -> str:
    """Return the path to a split.

    A test file must exist if one is set. The training and validation files are not checked until
    they are read.

    Args:
        files: a task's files, with an attribute for each split.
        split: "train", "validation" or "test".

    Raises:
        ValueError: the split is unknown or has no file, or the test file does not exist.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split={split!r}: expected 'train', 'validation' or 'test'")
    path: str = getattr(files, split)
    if not path:
        raise ValueError(f"{split} is not set. Set it to a file")
    if split == "test" and not is_tfds(path) and not has_file(path):
        raise ValueError(
            f"test={path}: the file does not exist, compressed or not. Correct the path, or set "
            "files.test='' to make no predictions"
        )
    return path


def is_held_out(texts: Sequence[str], share: float) -> bool:
    """Return whether the row with these texts should be held out for validation.

    The result depends only on a hash of the texts, ignoring case and whitespace. Duplicates
    therefore end up in the same split, adding rows to a file does not move existing rows, and
    increasing the fraction keeps all the rows that were already held out.
    """
    digest = document_digest(b"".join(map(folded_digest, texts)))
    return int.from_bytes(digest[:8], "big") < share * 2**64


def check_ids(ids: Sequence[str], locations: Sequence[str], split: Split, breaks: str) -> None:
    """Check that IDs can be written to a predictions file and, in a test set, that they are unique.

    A training set's IDs are not checked, since no predictions are made for it.

    Args:
        ids: [examples] the IDs.
        locations: [examples] "file:line".
        split: the split that the examples come from.
        breaks: the characters that would end a cell or a line in the predictions file.

    Raises:
        ValueError: an ID contains one of these characters or is repeated. The message gives the
            file, line and value.
    """
    if split == "train":
        return
    seen: dict[str, str] = {}
    for index, location in zip(ids, locations, strict=True):
        if any(character in index for character in breaks):
            characters = ", ".join(map(repr, breaks))
            raise ValueError(
                f"{location}: index {index[:80]!r} contains one of {characters}, which would "
                "corrupt the predictions file. Change it, or leave the index column unset, so that "
                "rows are numbered."
            )
        # Repeated IDs do not affect the scores on a validation set.
        if split == "test" and (first := seen.setdefault(index, location)) != location:
            raise ValueError(
                f"{location}: index {index[:80]!r} is also used by {first}, but each row needs a "
                "unique index. Check that this is the right column."
            )
