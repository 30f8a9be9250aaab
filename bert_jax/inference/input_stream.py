"""Read the input to `predict` from a file, or from standard input as lines arrive."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Literal, TypeVar, get_args

from bert_jax.labeled_data.files import file_bytes, find_file, has_file, stream_bytes
from bert_jax.local_paths import is_url, shown
from bert_jax.storage.urls import Location, ObjectUrl
from bert_jax.text.files import content_suffix

Format = Literal["auto", "text", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Suffixes of files whose lines are not texts.
_TABLES = (".tsv", ".csv", ".parquet")
_TAGGED = (".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2")
USE_EVALUATE = (
    "For one of the task's test files, run bert-jax evaluate WORKDIR --unlabelled --data FILE "
    "--predictions DIR (for GLUE, FILE is the directory that contains the test file)"
)
# The maximum size of a line, and of all lines that are processed together or read ahead: 32 full
# batches of 32 rows of 512 tokens. Classifying a line of this size took 0.6 GB of memory, tagging
# it took 1.0 GB, and answering a question about it took 1.7 GB (measured on 2026-11-25 on 2 CPU
# cores, with a model that has 40 positions).
MAX_BYTES = 2 << 20
Line = TypeVar("Line")
# An item that the reading thread puts in the queue: a line, None at the end of the input, or the
# exception that stopped the thread.
_Read = bytes | Exception | None


class _LineQueue(Queue[_Read]):
    """A queue that is full once it holds `max_lines` lines or `MAX_BYTES` bytes."""

    def __init__(self, max_lines: int):
        super().__init__(MAX_BYTES)
        # Every item counts as at least this number of bytes.
        self._min_size = -(-MAX_BYTES // max_lines)

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._size = 0

    def _qsize(self) -> int:
        return self._size

    def _put(self, item: _Read) -> None:
        super()._put(item)
        self._size += self._count(item)

    def _get(self) -> _Read:
        item: _Read = super()._get()
        self._size -= self._count(item)
        return item

    def _count(self, item: _Read) -> int:
        return max(self._min_size, len(item) if isinstance(item, bytes) else 0)


@dataclass(frozen=True)
class Input:
    """An input and its lines.

    Attributes:
      name: the input's name in messages.
      lines: the lines with their newlines, and None whenever the next line has not arrived yet.
      status: the result of calling stat on the file that the lines are read from; None for an
        object in a bucket.
    """

    name: str
    lines: Iterator[bytes | None]
    status: os.stat_result | None

    def check_not_overwritten(self, output: Location) -> None:
        """Raise a ValueError if the output file is the file being read."""
        if isinstance(output, ObjectUrl):
            if str(output) == self.name:
                raise ValueError(self._overwritten(output))
            return
        if self.status is None:
            return
        # A terminal may be both input and output.
        if not stat.S_ISREG(self.status.st_mode) or not output.exists():
            return
        if os.path.samestat(self.status, output.stat()):
            raise ValueError(self._overwritten(output))

    def _overwritten(self, output: Location) -> str:
        return (
            f"--output={output}: this is the input file ({self.name}), which would be overwritten. "
            "Use another name"
        )


def open_input(path: str | None, form: Format, max_lines: int) -> Input:
    """Open a file, which may be compressed (.gz, .xz, .zst), or standard input (None or "-").

    Pipes and devices, to which another program may still be writing, are read by a thread that
    reads up to `max_lines` lines ahead.

    Raises:
      ValueError: the file does not exist, is a directory, or has a suffix that "auto" does not
        support; or standard input is closed.
    """
    if path is None or path == "-":
        name = "standard input"
        if sys.stdin is None:  # Python sets sys.stdin to None if it was closed
            raise ValueError("standard input is closed. Add --input FILE, or pipe the lines in")
        # Open a separate stream: Python aborts if it exits while a thread is reading from
        # sys.stdin.
        stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        lines = stream_bytes(stream, name, MAX_BYTES)
        status: os.stat_result | None = os.fstat(stream.fileno())
    else:
        name = path
        if form == "auto":
            _check_name(path)
        file = find_file(path) if is_url(path) else _find(Path(path))
        lines = file_bytes(file, MAX_BYTES)
        status = None if isinstance(file, ObjectUrl) else os.stat(file)
    # Read a regular file without a thread, so that it is always split into the same batches.
    is_file = status is None or stat.S_ISREG(status.st_mode)
    return Input(name, lines if is_file else read_ahead(lines, max_lines), status)


def chunks(
    lines: Iterable[Line | None],
    first: int,
    largest: int,
    num_bytes: Callable[[Line], int] = lambda line: 0,
) -> Iterator[list[Line]]:
    """Yield `lines` in parts that double in size, from `first` up to `largest` lines.

    The first part is small so that the first results are available early. A part ends early at a
    None. It also ends early if, with the next line, the part would exceed `MAX_BYTES` bytes, as
    counted by `num_bytes`.
    """
    part: list[Line] = []
    size, held = first, 0
    for line in lines:
        if part and (line is None or held + num_bytes(line) > MAX_BYTES):
            yield part
            part, held = [], 0
        if line is None:
            continue
        part.append(line)
        held += num_bytes(line)
        if len(part) == size:
            yield part
            part, held = [], 0
            size = min(2 * size, largest)
    if part:
        yield part


def _find(file: Path) -> Location:
    """Return the file (possibly a pipe or device) or, if it is missing, its compressed version."""
    if has_file(file) or not file.exists():
        return find_file(file)
    if file.is_dir():
        raise ValueError(f"{shown(file)} is a directory; expected a file, or - for standard input")
    return file


def _check_name(path: str) -> None:
    suffix = content_suffix(Path(path))
    kinds = {"a table": _TABLES, "a file of tagged words": _TAGGED}
    for kind, suffixes in kinds.items():
        if suffix in suffixes:
            raise ValueError(
                f"{path}: {suffix} is the suffix of {kind}, whose lines are not texts. "
                f"{USE_EVALUATE}. If every line is a text, add --format text"
            )


def read_ahead(lines: Iterator[bytes], max_lines: int) -> Iterator[bytes | None]:
    """Read lines in a thread and yield them, with None whenever the next one has not arrived yet.

    The thread is never more than `max_lines` lines or `MAX_BYTES` ahead. The returned iterator
    raises the thread's exceptions.
    """
    queue = _LineQueue(max_lines)
    # Make the thread a daemon, so that a command that fails does not wait for the next line.
    Thread(target=_read, args=(lines, queue), name="read-ahead", daemon=True).start()
    return _dequeue(queue)


def _read(lines: Iterator[bytes], queue: _LineQueue) -> None:
    try:
        for line in lines:
            queue.put(line)
    except Exception as error:
        queue.put(error)
    else:
        queue.put(None)


def _dequeue(queue: _LineQueue) -> Iterator[bytes | None]:
    while True:
        try:
            line = queue.get_nowait()
        except Empty:
            yield None
            line = queue.get()
        if line is None:
            return
        if isinstance(line, Exception):
            raise line
        yield line
