"""Find and read files of examples: their splits, lines and IDs."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Literal, overload

from bert_jax.corpus.units import document_digest, folded_digest
from bert_jax.local_paths import check_local
from bert_jax.text.documents import SourceCounts
from bert_jax.text.files import BROKEN_ARCHIVE, COMPRESSIONS, is_tfds, open_stream
from bert_jax.text.tfds import parse_tfds

# The maximum length of a line, equal to the default limit for documents of a corpus. Lines are read
# before they are checked, and a line of 200 MB would take gigabytes of memory.
MAX_LINE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_BEGINNING_BYTES = 100


class LongLine(bytes):
    """The beginning of a line that is too long; `num_bytes` is the length of the entire line."""

    num_bytes: int

    def problem(self, limit: int) -> str:
        """Return a description of the problem, to follow the line's location in a message."""
        return (
            f"the line has {self.num_bytes:,} bytes; expected at most {limit:,}. Split its text, "
            "or check whether line feeds are missing"
        )


def find_file(path: str | Path) -> Path:
    """Return a file or, if it does not exist, a compressed file such as "dev.tsv.xz" next to it.

    Raises:
        ValueError: neither exists.
    """
    file = _first_existing(Path(path))
    if file is None:
        raise ValueError(
            f"{path} does not exist, nor does it with one of the extensions "
            f"{', '.join(COMPRESSIONS)}"
        )
    return file


def has_file(path: str | Path) -> bool:
    """Return whether a file exists, compressed or not."""
    return _first_existing(Path(path)) is not None


def _first_existing(plain: Path) -> Path | None:
    check_local(plain)
    compressed = (plain.with_name(plain.name + suffix) for suffix in COMPRESSIONS)
    return next((path for path in (plain, *compressed) if path.is_file()), None)


def file_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file with their line ends, without a byte-order mark.

    Only a line feed ends a line.

    Raises:
        ValueError: a line is not UTF-8 or is longer than `MAX_LINE_BYTES`, or the file is a damaged
            archive. The message contains the file and line.
    """
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_lines(stream, str(path))


def stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a stream in the same way as `file_lines`; `name` is for messages."""
    for number, data in enumerate(stream_bytes(stream, name), start=1):
        if isinstance(data, LongLine):
            raise ValueError(f"{name}:{number}: {data.problem(MAX_LINE_BYTES)}")
        try:
            yield decode_line(data)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None


def file_bytes(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file in the same way as `stream_bytes`."""
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_bytes(stream, str(path), limit)


def decode_line(data: bytes) -> str:
    """Return the text of a line.

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
    """Yield the undecoded lines of a stream, with a `LongLine` for each line above `limit` bytes.

    Args:
        stream: the stream.
        name: the name of the stream, for messages.
        limit: the maximum number of bytes of a line.

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

    def __init__(self, file: Path):
        self._file = file
        self._lines: list[array[int]] = []

    def append(self, lines: Iterable[int]) -> None:
        """Append a sentence, given the line numbers of its words, counted from 1."""
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
    """Reject a task without files, and the train split of TFDS for validation or testing."""
    if not (train or validation or test):
        raise ValueError("train, validation and test are all empty. Specify at least one file")
    for split, path in (("validation", validation), ("test", test)):
        if is_tfds(path) and parse_tfds(path).split == "train":
            raise ValueError(
                f"{split}={path!r}: this is the train split. Specify another, such as "
                f"{path.removesuffix(':train')}:{split}"
            )


def split_path(files: object, split: Split) -> str:
    """Return the path of a split.

    A missing training or validation file is reported when it is read. The test file is checked
    here, since it is optional.

    Args:
        files: the files of a task, with an attribute for each split.
        split: the split.

    Raises:
        ValueError: the split is unknown or not configured, or the test file does not exist.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split={split!r}: expected 'train', 'validation' or 'test'")
    path: str = getattr(files, split)
    if not path:
        raise ValueError(f"{split} is not set. Set it to a file")
    if split == "test" and not is_tfds(path) and not has_file(path):
        raise ValueError(
            f"test={path}: the file does not exist, compressed or not. Specify another, or "
            "files.test='' to make no predictions"
        )
    return path


def is_held_out(texts: Sequence[str], share: float) -> bool:
    """Return whether a row with these texts belongs to the share held out for validation.

    The result depends only on a hash of the texts, ignoring case and white space. Duplicates are
    therefore in the same split, adding rows to a file does not move other rows, and a larger share
    contains all rows of a smaller one.
    """
    digest = document_digest(b"".join(map(folded_digest, texts)))
    return int.from_bytes(digest[:8], "big") < share * 2**64


def check_ids(ids: Sequence[str], locations: Sequence[str], split: Split, breaks: str) -> None:
    """Check that IDs can be written to a file of predictions and, in a test set, are unique.

    IDs of a training set, for which no predictions are made, are not checked.

    Args:
        ids: [examples] the IDs.
        locations: [examples] "file:line".
        split: the split of the examples.
        breaks: the characters that would end a cell or a line of the file of predictions.

    Raises:
        ValueError: an ID contains one of these characters or is repeated. The message contains the
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
                "corrupt the file of predictions. Change it, or set no index column to number the "
                "rows."
            )
        # Repeated IDs do not affect the scores of a validation set.
        if split == "test" and (first := seen.setdefault(index, location)) != location:
            raise ValueError(
                f"{location}: index {index[:80]!r} is also used by {first}; expected a unique "
                "index for each row. Check whether it is the right column."
            )
