"""Lines of a file of examples, packed or not."""

from __future__ import annotations

import codecs
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from bert_jax.data.compression import BROKEN_ARCHIVE, COMPRESSIONS, open_stream
from bert_jax.data.documents import SourceCounts


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
    packed = (plain.with_name(plain.name + suffix) for suffix in COMPRESSIONS)
    return next((path for path in (plain, *packed) if path.is_file()), None)


def file_lines(path: Path) -> Iterator[str]:
    """Yields the lines of a UTF-8 file with their line ends, without a byte-order mark.

    Only a line feed ends a line. Raises ValueError naming file and line for what is not UTF-8 and
    for a damaged archive.
    """
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_lines(stream, str(path))


def stream_lines(stream: IO[bytes], name: str) -> Iterator[str]:
    """As `file_lines`, of a stream that messages call `name`."""
    for number, data in enumerate(stream_bytes(stream, name), start=1):
        try:
            yield decoded(data)
        except ValueError as error:
            raise ValueError(f"{name}:{number}: {error}") from None


def file_bytes(path: Path) -> Iterator[bytes]:
    """As `file_lines`, before they are decoded."""
    with open_stream(path, SourceCounts()) as stream:
        yield from stream_bytes(stream, str(path))


def decoded(data: bytes) -> str:
    """The text of a line; ValueError if it is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"byte 0x{data[error.start]:02x} is not UTF-8 ({error.reason}). Convert the file to "
            "UTF-8"
        ) from None


def stream_bytes(stream: IO[bytes], name: str) -> Iterator[bytes]:
    """As `stream_lines`, before they are decoded."""
    number = 0
    while True:
        try:
            data = stream.readline()
        except BROKEN_ARCHIVE as error:
            raise ValueError(
                f"{name}:{number + 1}: the {Path(name).suffix} archive is truncated or damaged: "
                f"{error}. Fetch or write the file again"
            ) from error
        if not data:
            return
        number += 1
        if number == 1:
            data = data.removeprefix(codecs.BOM_UTF8)
        yield data


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
