"""Expand inputs into files, and open both plain and compressed files."""

from __future__ import annotations

import glob
import gzip
import io
import logging
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import zstandard

from bert_jax.storage.locations import described, objects_below, open_location
from bert_jax.storage.patterns import matching_objects
from bert_jax.storage.urls import Location, ObjectUrl, parse_location

COMPRESSIONS = (".gz", ".xz", ".zst")
BROKEN_ARCHIVE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)

_BUFFER_BYTES = 1 << 20
# A Zstandard block has at least 4 bytes and decompresses to at most 128 KiB. One call therefore
# returns at most 256 MiB, even for a file designed to exhaust memory, and usually about 20 KiB.
_ZSTD_INPUT_BYTES = 8 << 10
_ZSTD_MAX_WINDOW = 256 << 20  # kept in memory; zstd's own limit is 128 MiB by default


class ReadCounter(Protocol):
    """A counter of the bytes read from disk, which also hashes them if `hashing` is set."""

    bytes_read: int
    hashing: Hash | None


class Hash(Protocol):
    """An incremental checksum, such as hashlib's."""

    def update(self, data: memoryview, /) -> None:
        """Add bytes to the checksum."""


@contextmanager
def open_stream(path: Location, counter: ReadCounter) -> Iterator[IO[bytes]]:
    """Open `path` as a buffered binary stream of its decompressed bytes.

    The number of bytes read from disk is added to `counter.bytes_read`, and the bytes themselves
    are added to the checksum in `counter.hashing` if there is one. Reading from a truncated or
    damaged archive always raises one of the exceptions in `BROKEN_ARCHIVE`. Reading from an archive
    that needs too much memory raises ValueError.
    """
    with ExitStack() as stack:
        raw: io.RawIOBase = stack.enter_context(_CountingFile(path, counter))
        stream: IO[bytes]
        match path.suffix.lower():
            case ".gz":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES)
            case ".xz":
                stream = io.BufferedReader(lzma.LZMAFile(raw), _BUFFER_BYTES)  # type: ignore[arg-type]
            case ".zst":
                stream = io.BufferedReader(_ZstdFile(raw, path), _BUFFER_BYTES)
            case _:
                stream = io.BufferedReader(raw, _BUFFER_BYTES)
        yield stack.enter_context(stream)


class _CountingFile(io.RawIOBase):
    def __init__(self, path: Location, counter: ReadCounter) -> None:
        self._file = open_location(path)
        self._counter = counter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        num_bytes = self._file.readinto(buffer) or 0
        self._counter.bytes_read += num_bytes
        if self._counter.hashing is not None:
            self._counter.hashing.update(memoryview(buffer)[:num_bytes])
        return num_bytes

    def close(self) -> None:
        self._file.close()
        super().close()


class _ZstdFile(io.RawIOBase):
    """A reader that decompresses the frames of a .zst file one after another.

    The stream reader in `zstandard` itself does not report that a file is truncated.
    """

    def __init__(self, raw: io.RawIOBase, path: Location) -> None:
        self._raw = raw
        self._path = path
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._within_frame = False
        self._decompressed = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while not self._decompressed:
            compressed = self._raw.read(_ZSTD_INPUT_BYTES)
            if not compressed:
                if self._within_frame:
                    raise EOFError("the file ends within a Zstandard frame")
                return 0
            self._decompressed = memoryview(self._decompress(compressed))
        num_bytes = min(len(buffer), len(self._decompressed))
        buffer[:num_bytes] = self._decompressed[:num_bytes]
        self._decompressed = self._decompressed[num_bytes:]
        return num_bytes

    def _decompress(self, compressed: bytes) -> bytes:
        chunks = []
        while compressed:
            try:
                chunks.append(self._frame.decompress(compressed))
            except zstandard.ZstdError as error:
                if "too much memory" not in str(error):
                    raise
                raise ValueError(
                    f"{self._path}: compressed with `zstd --long` and a window of more than "
                    f"{_ZSTD_MAX_WINDOW >> 20} MiB, which decompression must keep in memory. "
                    f"Compress it again: zstd -d --long=31 -c {self._path} | zstd -o NEW.zst"
                ) from error
            self._within_frame = not self._frame.eof
            compressed = self._frame.unused_data
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
        return b"".join(chunks)


logger = logging.getLogger(__name__)

TFDS_PREFIX = "tfds:"
TEXT_SUFFIXES = (".txt", ".text")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Formats that may contain text but must not be read as plain text. Files with any other unknown
# suffix are read as plain text.
_UNREADABLE_SUFFIXES = (
    ".7z",
    ".arrow",
    ".bz2",
    ".csv",
    ".html",
    ".pdf",
    ".rar",
    ".tar",
    ".tgz",
    ".tsv",
    ".xml",
    ".zip",
)
_EXPECTED = (
    f"plain text ({', '.join(TEXT_SUFFIXES)} or any other name) or "
    f"JSON Lines ({', '.join(JSON_LINES_SUFFIXES)}), optionally compressed "
    f"({', '.join(COMPRESSIONS)}), or Parquet ({', '.join(PARQUET_SUFFIXES)})"
)


def is_tfds(name: str) -> bool:
    """Return whether an input is the name of a TFDS dataset rather than a file."""
    return name.startswith(TFDS_PREFIX)


def content_suffix(path: Location) -> str:
    """Return the lowercase suffix of a path, ignoring compression: ".jsonl" for "a.jsonl.gz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def expand_inputs(inputs: Sequence[str]) -> list[str]:
    """Return the files and TFDS datasets that the inputs refer to, in reading order.

    A file or `tfds:...` is returned unchanged. A directory is replaced by all files below it that
    have a supported suffix, and a pattern (`*`, `?`, `[...]`, `**`) by the files it matches; in
    both cases, the files are sorted by path. Inside a directory, names that begin with "." or "_"
    are skipped, as in Spark and Hadoop. A file that is found more than once is returned only once.

    Raises:
      ValueError: an input does not exist, contains or matches no file, or has an unsupported
        format.
    """
    if isinstance(inputs, str):
        raise ValueError(f"inputs={inputs!r}: this is a single string. Expected a list of paths.")
    if not inputs:
        raise ValueError("No inputs. Specify at least one file, directory or tfds:NAME.")
    expanded: dict[str, str] = {}  # from TFDS name or real path to input
    for name in inputs:
        for source in _expand(name):
            expanded.setdefault(source if is_tfds(source) else identity(source), source)
    return list(expanded.values())


def identity(name: str) -> str:
    """Return the same text for all names of one file: its real path or URL."""
    location = parse_location(name)
    return str(location) if isinstance(location, ObjectUrl) else os.path.realpath(location)


def _expand(name: str) -> Iterator[str]:
    if is_tfds(name):
        yield name
        return
    path = parse_location(name)
    if isinstance(path, ObjectUrl):
        files = _expand_url(path)
        yield from _supported(files)
        return
    if path.is_dir():
        yield from _files_below(path)
        return
    if path.exists():
        if not path.is_file():
            raise ValueError(
                f"{name}: this is a pipe or a device, not a file. Write it to a file first, since "
                "a resumed run reads its input again, and progress depends on the file's size."
            )
        files = [name]
    elif glob.has_magic(name):
        files = sorted(file for file in glob.glob(name, recursive=True) if not os.path.isdir(file))
        if not files:
            raise ValueError(f"{name}: no file matches this pattern.")
    else:
        raise ValueError(f"{name}: no such file or directory.")
    yield from _supported(files)


def _expand_url(url: ObjectUrl) -> list[str]:
    """Return the objects that a URL, a pattern or a directory in a bucket stands for."""
    if url.key and described(url) is not None:
        return [str(url)]
    if glob.has_magic(url.key):
        names = [str(info.url) for info in matching_objects(url)]
        if not names:
            raise ValueError(f"{url}: no object matches this pattern.")
        return names
    below = [(info.url, str(info.url)) for info in objects_below(url)]
    if not below:
        raise ValueError(f"{url}: there is no such object or directory in the bucket.")
    return _with_text(url, below)


def _supported(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        suffix = content_suffix(Path(file))
        if suffix in _UNREADABLE_SUFFIXES:
            raise ValueError(f"{file}: cannot read {suffix} files. Expected {_EXPECTED}.")
        if suffix in PARQUET_SUFFIXES and Path(file).suffix.lower() in COMPRESSIONS:
            raise ValueError(
                f"{file}: cannot read a compressed Parquet file. Decompress it first (Parquet "
                "compresses its own content)."
            )
        yield file


def _files_below(directory: Path) -> Iterator[str]:
    yield from _with_text(directory, [(path, str(path)) for path in _walk(directory)])


def _with_text(directory: Location, paths: Iterable[tuple[Location, str]]) -> list[str]:
    """Return the files in a directory that have a supported suffix, sorted by path."""
    suffixes = TEXT_SUFFIXES + JSON_LINES_SUFFIXES + PARQUET_SUFFIXES
    files: list[str] = []
    skipped: list[str] = []
    for path, name in paths:
        (files if content_suffix(path) in suffixes else skipped).append(name)
    if not files:
        raise ValueError(
            f"{directory}: no file in this directory has a supported suffix. Expected {_EXPECTED}. "
            f"To read files with other suffixes, use a pattern such as {str(directory / '*')!r}."
        )
    if skipped:
        logger.warning(
            "%s: skipping %d files with other suffixes, such as %s",
            directory,
            len(skipped),
            min(skipped),
        )
    return sorted(files)


def _walk(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory in no particular order, following links to directories.

    Raises:
      OSError: a directory cannot be listed; `os.walk` would skip it silently.
    """

    def refuse(error: OSError) -> None:
        raise error

    entered = {os.path.realpath(directory)}
    for folder, subfolders, names in os.walk(directory, onerror=refuse, followlinks=True):
        visible = sorted(name for name in subfolders if not name.startswith((".", "_")))
        subfolders.clear()
        for name in visible:
            target = os.path.realpath(os.path.join(folder, name))
            if target not in entered:  # following a link to a parent directory would never end
                entered.add(target)
                subfolders.append(name)
        yield from (Path(folder, name) for name in names if not name.startswith((".", "_")))
