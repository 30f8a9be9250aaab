"""Opens a file for streaming, decompressing .gz, .xz and .zst by its name."""

from __future__ import annotations

import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Protocol

import zstandard

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
