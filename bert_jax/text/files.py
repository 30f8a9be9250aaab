"""Expand what the user names as input into files, and open them, compressed or not."""

from __future__ import annotations

import glob
import gzip
import io
import logging
import lzma
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import zstandard

from bert_jax.local_paths import check_local

COMPRESSIONS = (".gz", ".xz", ".zst")
BROKEN_ARCHIVE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)

_BUFFER_BYTES = 1 << 20
# One block of Zstandard is at least 4 bytes and at most 128 KiB unpacked, so that what one call
# can unpack to is bounded by 256 MiB even in a file made to exhaust memory, 20 KiB in others.
_ZSTD_INPUT_BYTES = 8 << 10
_ZSTD_MAX_WINDOW = 256 << 20  # held in memory; by default zstd itself refuses over 128 MiB


class ReadCounter(Protocol):
    """Counts the bytes read from disk and, if `hashing` is set, hashes them."""

    bytes_read: int
    hashing: Hash | None


class Hash(Protocol):
    """An incremental checksum, such as hashlib's."""

    def update(self, data: memoryview, /) -> None:
        """Add bytes to the checksum."""


@contextmanager
def open_stream(path: Path, counter: ReadCounter) -> Iterator[IO[bytes]]:
    """Yields a buffered binary stream over the unpacked bytes of `path`.

    Adds the bytes read from disk to `counter.bytes_read`, and to `counter.hashing` if it is set.
    Reading from a truncated or damaged archive raises one of `BROKEN_ARCHIVE`, never a silent end;
    reading from an archive that needs too much memory raises ValueError.
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
    def __init__(self, path: Path, counter: ReadCounter) -> None:
        self._file = open(path, "rb", buffering=0)
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
    """Unpacks the frames of a .zst file one after another.

    `zstandard`'s own stream reader ends without a word where a truncated file ends.
    """

    def __init__(self, raw: io.RawIOBase, path: Path) -> None:
        self._raw = raw
        self._path = path
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW)
        self._frame = self._decompressor.decompressobj()
        self._within_frame = False
        self._unpacked = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        while not self._unpacked:
            packed = self._raw.read(_ZSTD_INPUT_BYTES)
            if not packed:
                if self._within_frame:
                    raise EOFError("the file ends before its last Zstandard frame does")
                return 0
            self._unpacked = memoryview(self._unpack(packed))
        num_bytes = min(len(buffer), len(self._unpacked))
        buffer[:num_bytes] = self._unpacked[:num_bytes]
        self._unpacked = self._unpacked[num_bytes:]
        return num_bytes

    def _unpack(self, packed: bytes) -> bytes:
        pieces = []
        while packed:
            try:
                pieces.append(self._frame.decompress(packed))
            except zstandard.ZstdError as error:
                if "too much memory" not in str(error):
                    raise
                raise ValueError(
                    f"{self._path} was packed with `zstd --long` and a window of over "
                    f"{_ZSTD_MAX_WINDOW >> 20} MiB, which unpacking would have to hold in memory; "
                    f"pack it again: zstd -d --long=31 -c {self._path} | zstd -o NEW.zst"
                ) from error
            self._within_frame = not self._frame.eof
            packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = self._decompressor.decompressobj()
        return b"".join(pieces)


logger = logging.getLogger(__name__)

TFDS_PREFIX = "tfds:"
TEXT_SUFFIXES = (".txt", ".text")
JSON_LINES_SUFFIXES = (".jsonl", ".ndjson", ".json")
PARQUET_SUFFIXES = (".parquet", ".pq")
# Formats people do keep text in which would otherwise be read as if they were plain text.
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
    f"plain text ({', '.join(TEXT_SUFFIXES)} or any other name), "
    f"JSON Lines ({', '.join(JSON_LINES_SUFFIXES)}), each also {', '.join(COMPRESSIONS)}, "
    f"or Parquet ({', '.join(PARQUET_SUFFIXES)})"
)


def is_tfds(name: str) -> bool:
    """Whether an input names a TFDS dataset and not a file."""
    return name.startswith(TFDS_PREFIX)


def content_suffix(path: Path) -> str:
    """The suffix that tells the format, in lower case: ".jsonl" of "a.jsonl.gz"."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def expand_inputs(inputs: Sequence[str]) -> list[str]:
    """The files and TFDS datasets that `inputs` stand for, each once, in the order to read them.

    A file or `tfds:...` stands for itself, a directory for every file below it with a known
    suffix, a pattern (`*`, `?`, `[...]`, `**`) for the files it matches; the files of a directory
    or pattern are sorted by path. Names that begin with "." or "_" within a directory are passed
    over, as Spark's and Hadoop's readers do. ValueError if an input stands for nothing, or for a
    format that cannot be read.
    """
    if isinstance(inputs, str):
        raise ValueError(f"inputs is the single string {inputs!r}; expected a list of paths")
    if not inputs:
        raise ValueError("no input was given; name at least one file, directory or tfds:NAME")
    expanded: dict[str, str] = {}  # what identifies the input -> its name
    for name in inputs:
        for found in _expand(name):
            identity = found if is_tfds(found) else os.path.realpath(found)
            expanded.setdefault(identity, found)
    return list(expanded.values())


def _expand(name: str) -> Iterator[str]:
    if is_tfds(name):
        yield name
        return
    check_local(name)
    path = Path(name)
    if path.is_dir():
        yield from _files_below(path)
        return
    if path.exists():
        if not path.is_file():
            raise ValueError(
                f"{name} is a pipe or a device, not a file; input is read again after a kill and "
                "its size tells how far one is, so write it to a file first"
            )
        files = [name]
    elif glob.has_magic(name):
        files = sorted(file for file in glob.glob(name, recursive=True) if not os.path.isdir(file))
        if not files:
            raise ValueError(f"no file matches the pattern {name!r}")
    else:
        raise ValueError(f"input {name!r} does not exist")
    for file in files:
        suffix = content_suffix(Path(file))
        if suffix in _UNREADABLE_SUFFIXES:
            raise ValueError(f"{file}: cannot read {suffix} files; expected {_EXPECTED}")
        if suffix in PARQUET_SUFFIXES and Path(file).suffix.lower() in COMPRESSIONS:
            raise ValueError(f"{file}: decompress it first; Parquet is compressed inside")
        yield file


def _files_below(directory: Path) -> Iterator[str]:
    known = TEXT_SUFFIXES + JSON_LINES_SUFFIXES + PARQUET_SUFFIXES
    files: list[str] = []
    passed_over: list[str] = []
    for path in _walk(directory):
        (files if content_suffix(path) in known else passed_over).append(str(path))
    if not files:
        raise ValueError(
            f"directory {str(directory)!r} holds no file that is known by its name as {_EXPECTED}; "
            f"for files named otherwise give a pattern, such as {str(directory / '*')!r}"
        )
    if passed_over:
        logger.warning(
            "%s: passing over %d files not known by their suffix, such as %s",
            directory,
            len(passed_over),
            min(passed_over),
        )
    yield from sorted(files)


def _walk(directory: Path) -> Iterator[Path]:
    """The files below a directory, through links to others, in no particular order.

    OSError for a directory that cannot be listed, which `os.walk` would leave out in silence.
    """

    def refuse(error: OSError) -> None:
        raise error

    entered = {os.path.realpath(directory)}
    for folder, subfolders, names in os.walk(directory, onerror=refuse, followlinks=True):
        visible = sorted(name for name in subfolders if not name.startswith((".", "_")))
        subfolders.clear()
        for name in visible:
            target = os.path.realpath(os.path.join(folder, name))
            if target not in entered:  # a link to a directory above would never end
                entered.add(target)
                subfolders.append(name)
        yield from (Path(folder, name) for name in names if not name.startswith((".", "_")))
