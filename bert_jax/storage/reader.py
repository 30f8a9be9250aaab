"""Read objects as files, without storing them on disk."""

from __future__ import annotations

import io
import threading
from concurrent.futures import Future

from bert_jax.storage.objects import READ_BYTES, read_range
from bert_jax.storage.store import ObjectInfo


class ObjectReader(io.RawIOBase):
    """A seekable, unbuffered binary file that reads one version of an object.

    While one block of 8 MiB is being used, the next one is read in a thread. At most two blocks are
    in memory. If the object is replaced in the meantime, reading raises a `ConflictError`.
    """

    def __init__(self, info: ObjectInfo):
        """Open the version of an object that `info` describes."""
        self.info = info
        self._position = 0
        self._number, self._block = -1, b""
        self._next: tuple[int, Future[bytes]] | None = None

    @property
    def name(self) -> str:
        """The object's URL."""
        return str(self.info.url)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position from which the next byte is read."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position, and return it."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.info.num_bytes}
        self._position = max(0, base[whence] + offset)
        return self._position

    def readinto(self, buffer) -> int:  # type: ignore[no-untyped-def]
        """Read bytes up to the end of the current block, and return their number."""
        if self._position >= self.info.num_bytes or not len(buffer):
            return 0
        number, start = divmod(self._position, READ_BYTES)
        self._load(number)
        content = self._block[start : start + len(buffer)]
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _load(self, number: int) -> None:
        if number == self._number:
            return
        ahead, self._next = self._next, None
        sequential = number == self._number + 1
        if ahead is not None and ahead[0] == number:
            self._block = ahead[1].result()
        else:
            self._block = self._read(number)
        self._number = number
        if sequential and (number + 1) * READ_BYTES < self.info.num_bytes:
            self._next = number + 1, self._read_ahead(number + 1)

    def _read(self, number: int) -> bytes:
        return read_range(self.info, number * READ_BYTES, (number + 1) * READ_BYTES)

    def _read_ahead(self, number: int) -> Future[bytes]:
        """Read a block in a thread that the process does not wait for when it ends."""
        block: Future[bytes] = Future()

        def read() -> None:
            try:
                block.set_result(self._read(number))
            except BaseException as error:
                block.set_exception(error)

        threading.Thread(target=read, name="read-ahead", daemon=True).start()
        return block

    def close(self) -> None:
        """Close the file; a block that is being read is discarded."""
        self._next = None
        super().close()
