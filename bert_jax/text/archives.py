"""Open plain and compressed files as streams of bytes, and count and hash the bytes read."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Protocol

import zstandard

from bert_jax.storage.locations import open_location
from bert_jax.storage.urls import Location

COMPRESSIONS = (".gz", ".xz", ".zst")
BROKEN_ARCHIVE = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zstandard.ZstdError)

_BUFFER_BYTES = 1 << 20
# The number of compressed bytes to decompress per call. A Zstandard block has at least 4 bytes and
# decompresses to at most 128 KiB, so one call returns at most 256 MiB, even for a file designed to
# exhaust memory. Usually, it returns about 20 KiB.
_ZSTD_INPUT_BYTES = 8 << 10
# Decompression keeps the window in memory. The default limit of the zstd command is 128 MiB.
_ZSTD_MAX_WINDOW = 256 << 20


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
        raw: io.RawIOBase = stack.enter_context(CountingFile(path, counter))
        stream: IO[bytes]
        match path.suffix.lower():
            case ".gz":
                stream = io.BufferedReader(gzip.GzipFile(fileobj=raw), _BUFFER_BYTES)
            case ".xz":
                stream = io.BufferedReader(lzma.LZMAFile(raw), _BUFFER_BYTES)  # type: ignore[arg-type]
            case ".zst":
                stream = io.BufferedReader(ZstdFile(raw, path), _BUFFER_BYTES)
            case _:
                stream = io.BufferedReader(raw, _BUFFER_BYTES)
        yield stack.enter_context(stream)


class CountingFile(io.RawIOBase):
    """A file that counts the bytes read from it, and hashes them if the counter has a checksum."""

    def __init__(self, path: Location, counter: ReadCounter) -> None:
        self._file = open_location(path)
        self._counter = counter

    def readable(self) -> bool:  # noqa: D102
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # noqa: D102
        num_bytes = self._file.readinto(buffer) or 0
        self._counter.bytes_read += num_bytes
        if self._counter.hashing is not None:
            self._counter.hashing.update(memoryview(buffer)[:num_bytes])
        return num_bytes

    def close(self) -> None:  # noqa: D102
        self._file.close()
        super().close()


class ZstdFile(io.RawIOBase):
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

    def readable(self) -> bool:  # noqa: D102
        return True

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]  # noqa: D102
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
