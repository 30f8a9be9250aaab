"""Find and read a task's files of examples: their splits, lines, and ids."""

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

# Limit on a line of a file of examples, equal to the default limit for a corpus's documents. Lines
# are read before they are checked, and a line of 200 MB would take gigabytes.
MAX_LINE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_BEGINNING_BYTES = 100


class LongLine(bytes):
    """The beginning of a line that is too long to read; `num_bytes` is the whole line's length."""

    num_bytes: int

    def fault(self, limit: int) -> str:
        """Return a description of the fault, to follow the line's place in a message."""
        return (
            f"the line has {self.num_bytes:,} bytes; expected at most {limit:,}. Split its text, "
            "or check whether the file lacks line feeds"
        )


def find_file(path: str | Path) -> Path:
    """The file of this name, or the one packed beside it: "dev.tsv.xz" where there is no "dev.tsv".

    Raises:
        ValueError: there is neither.
    """
    found = _first_there(Path(path))
    if found is None:
        raise ValueError(
            f"{path} does not exist, nor does it with {', '.join(COMPRESSIONS)} after its name"
        )
    return found


def has_file(path: str | Path) -> bool:
    """Whether `find_file` finds one."""
    return _first_there(Path(path)) is not None


def _first_there(plain: Path) -> Path | None:
    check_local(plain)
    packed = (plain.with_name(plain.name + suffix) for suffix in COMPRESSIONS)
    return next((path for path in (plain, *packed) if path.is_file()), None)


def file_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their line ends, without a byte-order mark.

    Only a line feed ends a line. Raises ValueError with file and line for a line that is not UTF-8
    or is longer than `MAX_LINE_BYTES`, and for a damaged archive.
    """
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_lines(stream, str(path))


def stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """As `file_lines`, of a stream that messages call `name`."""
    for number, data in enumerate(stream_bytes(stream, name), start=1):
        if isinstance(data, LongLine):
            raise ValueError(f"{name}:{number}: {data.fault(MAX_LINE_BYTES)}")
        try:
            yield decoded(data)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None


def file_bytes(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file in the same way as `stream_bytes`."""
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_bytes(stream, str(path), limit)


def decoded(data: bytes) -> str:
    """The text of a line; ValueError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 ({error.reason}). Convert the file to "
            "UTF-8"
        ) from None


def stream_bytes(stream: IO[bytes], name: str, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the undecoded lines of a stream; a `LongLine` replaces a line above `limit` bytes.

    Raises:
        ValueError: the stream, called `name` in messages, is a damaged archive.
    """
    number = 0
    while True:
        try:
            data = stream.readline(limit + 1)
            if len(data) > limit and not data.endswith(b"\n"):
                data = _rest_skipped(stream, data)
        except BROKEN_ARCHIVE as error:
            raise ValueError(
                f"{name}:{number + 1}: the {Path(name).suffix} archive is truncated or damaged: "
                f"{error}. Fetch or write the file again"
            ) from error
        if not data:
            return
        number += 1
        if number == 1 and not isinstance(data, LongLine):
            data = data.removeprefix(codecs.BOM_UTF8)
        yield data


def _rest_skipped(stream: IO[bytes], data: bytes) -> LongLine:
    line = LongLine(data[:_BEGINNING_BYTES].removeprefix(codecs.BOM_UTF8))
    line.num_bytes = len(data)
    while piece := stream.readline(_PIECE_BYTES):
        line.num_bytes += len(piece)
        if piece.endswith(b"\n"):
            break
    return line


class WordPlaces(Sequence[Sequence[str]]):
    """Where the words of sentences stand, "file:line" [sentences][words]; kept in 8 bytes each."""

    def __init__(self, file: Path):
        self._file = file
        self._lines: list[array[int]] = []

    def append(self, lines: Iterable[int]) -> None:
        """Another sentence, whose words stand on these lines, counted from 1."""
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
    """Refuses a task without files, and TFDS's train split under another name."""
    if not (train or validation or test):
        raise ValueError("train, validation and test are all empty; name at least one file")
    for split, path in (("validation", validation), ("test", test)):
        if is_tfds(path) and parse_tfds(path).split == "train":
            raise ValueError(
                f"{split} is {path!r}, which is the train split; name another, such as "
                f"{path.removesuffix(':train')}:{split}"
            )


def split_path(files: object, split: Split) -> str:
    """The path of a split. ValueError if the task has none, or no such split or test file is there.

    A training or validation file that is not there is for who reads it to refuse: no task goes
    without, and there is no more to say.
    """
    if split not in ("train", "validation", "test"):
        raise ValueError(f"split is {split!r}; expected 'train', 'validation' or 'test'")
    path: str = getattr(files, split)
    if not path:
        raise ValueError(f"no {split} file was given; set {split}")
    if split == "test" and not is_tfds(path) and not has_file(path):
        raise ValueError(
            f"{path}, the test file, does not exist, nor does it packed. Name another; a run that "
            "is to predict none has files.test=''"
        )
    return path


def is_held_out(texts: Sequence[str], share: float) -> bool:
    """Return whether a row with these texts belongs to the share held out for validation.

    The result depends only on a hash of the texts, ignoring case and white space: duplicates are on
    the same side, adding rows to a file moves no other rows, and a larger share contains all rows
    of a smaller one.
    """
    digest = document_digest(b"".join(map(folded_digest, texts)))
    return int.from_bytes(digest[:8], "big") < share * 2**64


def check_ids(ids: Sequence[str], places: Sequence[str], split: Split, breaks: str) -> None:
    """Refuses an id that a file of predictions cannot hold, of a test set also one that repeats.

    breaks: the characters that would end a cell of it or a line. Nothing is predicted for the
    training set. Raises ValueError naming file, line and value.
    """
    if split == "train":
        return
    seen: dict[str, str] = {}
    for index, place in zip(ids, places, strict=True):
        if any(character in index for character in breaks):
            signs = ", ".join(map(repr, breaks))
            raise ValueError(
                f"{place}: index {index[:80]!r}; expected none of {signs} in it, which break the "
                "lines of predictions. Change it, or name no index column to number the rows."
            )
        # A validation set is scored, whatever its rows are called.
        if split == "test" and (before := seen.setdefault(index, place)) != place:
            raise ValueError(
                f"{place}: index {index[:80]!r} is that of {before} too; expected one of its own "
                "for each row. Is it the right column?"
            )
