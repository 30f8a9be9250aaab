"""What `predict` reads: a file, or standard input as its lines come."""

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
from bert_jax.text.files import content_suffix

Format = Literal["auto", "text", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Files whose lines are no texts, by the end of their names.
_TABLES = (".tsv", ".csv", ".parquet")
_TAGGED = (".conll", ".conll03", ".conll2003", ".conllu", ".bio", ".iob", ".iob2")
# What fits them.
OF_THE_TASK = (
    "For a test file of the task: bert-jax evaluate WORKDIR --unlabelled --data FILE --predictions "
    "DIR (of GLUE, FILE is the directory it is in)"
)
# Limit on a line, and on the lines computed together or read ahead: 32 full batches of 32 rows of
# 512 tokens. Classifying a line of this size took 0.6 GB, tagging it 1.0 GB, answering a question
# about it 1.7 GB (predict with a model of 40 positions, 2 CPU cores, 2026-11-25).
MAX_BYTES = 2 << 20
Line = TypeVar("Line")
# A line, None at the end of the input, or the exception that stopped the reader.
_Read = bytes | Exception | None


class _Waiting(Queue[_Read]):
    """A queue that is full at `most` lines or `MAX_BYTES`; the last line may exceed either."""

    def __init__(self, most: int):
        super().__init__(MAX_BYTES)
        self._least = -(-MAX_BYTES // most)  # least number of bytes counted for a line

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
        return max(self._least, len(item) if isinstance(item, bytes) else 0)


@dataclass(frozen=True)
class Input:
    """Lines to be answered.

    name: what messages call them. lines: with their ends; None where no further one is there yet.
    status: of the file they are read from.
    """

    name: str
    lines: Iterator[bytes | None]
    status: os.stat_result

    def check_stays(self, output: Path) -> None:
        """ValueError if `output`, which is to be written, is the file that is read."""
        # A terminal may well be both.
        if not stat.S_ISREG(self.status.st_mode) or not output.exists():
            return
        if os.path.samestat(self.status, output.stat()):
            raise ValueError(
                f"{output} would be written while it is read as {self.name}, which would be lost; "
                "give --output another name"
            )


def open_input(path: str | None, form: Format, most: int) -> Input:
    """Begins to read a file (also packed: .gz, .xz, .zst), or standard input: None or "-".

    What somebody may still be writing is read by a thread, up to `most` lines ahead.

    Raises:
      ValueError: no such file, closed standard input, a directory, or by its name another form
        than "auto" can tell.
    """
    if path is None or path == "-":
        name = "standard input"
        if sys.stdin is None:  # so Python has it where it was closed
            raise ValueError("standard input is closed: give --input FILE, or lines by a pipe")
        # A stream of its own: Python aborts if it ends while a thread reads sys.stdin's.
        stream = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
        lines, status = stream_bytes(stream, name, MAX_BYTES), os.fstat(stream.fileno())
    else:
        name = path
        if form == "auto":
            _check_name(path)
        found = _find(path)
        lines, status = file_bytes(found, MAX_BYTES), os.stat(found)
    # The lines of a file are all there: taken so, they are always computed in the same batches.
    whole = stat.S_ISREG(status.st_mode)
    return Input(name, lines if whole else read_ahead(lines, most), status)


def chunks(
    lines: Iterable[Line | None],
    first: int,
    most: int,
    num_bytes: Callable[[Line], int] = lambda line: 0,
) -> Iterator[list[Line]]:
    """Yield `lines` in parts of growing size, beginning with `first` so that results start early.

    A None ends a part early, and so does a line that would bring its size, measured by `num_bytes`,
    above `MAX_BYTES`.
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
            size = min(2 * size, most)
    if part:
        yield part


def _find(path: str) -> Path:
    """The file, which may be a pipe or a device; or the one packed beside it."""
    given = Path(path)
    if has_file(given) or not given.exists():
        return find_file(given)
    if given.is_dir():
        raise ValueError(f"{path} is a directory; expected a file, or - for standard input")
    return given


def _check_name(path: str) -> None:
    suffix = content_suffix(Path(path))
    kinds = {"a table": _TABLES, "a file with a word and its tag a line": _TAGGED}
    for kind, ends in kinds.items():
        if suffix in ends:
            raise ValueError(
                f"{path}: its name is that of {kind}, whose lines are no texts. {OF_THE_TASK}; for "
                "a text a line: --format text"
            )


def read_ahead(lines: Iterator[bytes], most: int) -> Iterator[bytes | None]:
    """The lines that a thread reads from now on, with None wherever the next has to be waited for.

    The thread is never more than `most` lines or `MAX_BYTES` ahead. Its exceptions are raised here.
    """
    waiting = _Waiting(most)
    # A daemon, or a command that has failed would go on until it is given another line.
    Thread(target=_read, args=(lines, waiting), name="read-ahead", daemon=True).start()
    return _taken(waiting)


def _read(lines: Iterator[bytes], waiting: _Waiting) -> None:
    try:
        for line in lines:
            waiting.put(line)
    except Exception as error:
        waiting.put(error)
    else:
        waiting.put(None)


def _taken(waiting: _Waiting) -> Iterator[bytes | None]:
    while True:
        try:
            line = waiting.get_nowait()
        except Empty:
            yield None
            line = waiting.get()
        if line is None:
            return
        if isinstance(line, Exception):
            raise line
        yield line
