"""Test reading lines from example files without exceeding limits on line length and memory."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest

from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import MAX_LINE_BYTES, LongLine, file_lines, stream_bytes
from bert_jax.labeled_data.tables import read_table


class LongLineStream(io.RawIOBase):
    """A stream of `size` bytes without a line feed, followed by a short line."""

    def __init__(self, size: int) -> None:
        self._remaining = size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        if self._remaining > 0:
            size = min(len(buffer), self._remaining)
            buffer[:size] = b"x" * size
        else:
            size = len(b"\nend\n") if self._remaining == 0 else 0
            buffer[:size] = b"\nend\n"[:size]
        self._remaining -= size
        return size


def test_a_long_line_is_not_kept_in_memory() -> None:
    size, limit = 200_000_000, 1 << 20
    tracemalloc.start()
    long, short = stream_bytes(io.BufferedReader(LongLineStream(size)), "stream", limit)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(long, LongLine) and long.num_bytes == size + 1
    assert short == b"end\n"
    assert peak < 5 * limit


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_may_be_as_long_as_the_limit(end: bytes) -> None:
    for size, allowed in ((8, True), (9, False)):
        (line,) = stream_bytes(io.BytesIO(size * b"x" + end), "stream", 8)
        assert isinstance(line, LongLine) != allowed
        if allowed:
            assert line == size * b"x" + end


def test_the_length_of_a_long_line_includes_a_byte_order_mark() -> None:
    (line,) = stream_bytes(io.BytesIO(b"\xef\xbb\xbf{" + 20 * b"x"), "stream", 8)
    assert isinstance(line, LongLine) and line.startswith(b"{") and line.num_bytes == 24


def test_errors_name_the_location_of_long_lines_and_cells(tmp_path: Path) -> None:
    path = tmp_path / "train.tsv"
    path.write_bytes(b"text\nfine\n" + (MAX_LINE_BYTES + 1) * b"x" + b"\n")
    with pytest.raises(ValueError, match=r"train.tsv:3: the line has 16,777,218 bytes, but"):
        list(file_lines(path))
    # A quote that is never closed swallows all the lines that follow.
    path = tmp_path / "train.csv"
    path.write_bytes(b'text\nfine\n"open\n' + (MAX_LINE_BYTES // 99 + 1) * (98 * b"x" + b"\n"))
    with pytest.raises(
        ValueError, match=r"train.csv:3: the cell that starts here is longer than 16"
    ):
        read_table(str(path), TableFormat(kind="csv"), ["text"])
