"""Processes that turn units into shards, each with one unit at a time."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType

from bert_jax.data.shards import ShardSettings, UnitResult, write_shard
from bert_jax.data.tokenizer import Tokenizer
from bert_jax.data.units import Unit
from bert_jax.data.worker_life import cause_of_death, end_with_parent


@dataclass(frozen=True)
class Done:
    """A unit's name, its result, and the most memory its worker has held so far, in bytes."""

    name: str
    result: UnitResult
    peak_memory: int


@dataclass
class _Worker:
    process: SpawnProcess
    connection: Connection
    unit: str = ""  # name of the unit it has; empty while it waits for one


class WorkerPool:
    """A context manager around up to `num_workers` processes; leaving it ends them at once.

    A process starts when there is a unit and no other process is free to take it. It is spawned,
    not forked: the parent may hold threads (of a reader, of a tokenizer) that a fork would lose
    together with the locks they hold.
    """

    def __init__(self, num_workers: int, tokenizer: Path, settings: ShardSettings, directory: Path):
        self._num_workers = num_workers
        self._arguments = (tokenizer, settings, directory)
        self._workers: list[_Worker] = []

    def submit(self, unit: Unit) -> Iterator[Done]:
        """Hand a unit to the first worker that is free, yielding what is done until then.

        Raises:
            OSError: a worker could not write, or was killed.
        """
        if self._free() is None and len(self._workers) < self._num_workers:
            self._workers.append(self._start())
        while (worker := self._free()) is None:
            yield from self._wait()
        worker.unit = unit.name
        try:
            worker.connection.send(unit)
        except (BrokenPipeError, ConnectionResetError):
            _receive(worker)  # what it died of
            raise

    def _free(self) -> _Worker | None:
        return next((worker for worker in self._workers if not worker.unit), None)

    def _start(self) -> _Worker:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, *self._arguments), daemon=True)
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def drain(self) -> Iterator[Done]:
        """Yield the rest as it is done."""
        while any(worker.unit for worker in self._workers):
            yield from self._wait()

    def _wait(self) -> Iterator[Done]:
        """Wait until at least one worker that has a unit says something."""
        busy = {worker.connection: worker for worker in self._workers if worker.unit}
        for ready in connection.wait(list(busy)):
            worker = busy[ready]  # type: ignore[index]
            done = _receive(worker)
            worker.unit = ""
            yield done

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.kill()  # nothing is lost: a file counts once it is renamed
        for worker in self._workers:
            worker.process.join()
            worker.connection.close()


def _receive(worker: _Worker) -> Done:
    try:
        message = worker.connection.recv()
    except (EOFError, ConnectionResetError):
        raise _death(worker) from None
    if isinstance(message, BaseException):
        raise message
    return message


def _death(worker: _Worker) -> OSError:
    cause = cause_of_death(worker.process, "Use fewer workers or smaller units")
    return OSError(f"the worker preparing {worker.unit} {cause}")


def _serve(requests: Connection, tokenizer: Path, settings: ShardSettings, directory: Path) -> None:
    """The life of a worker: units in, results or an exception out, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    # A worker that outlived a killed preparation could rename its shard into the next one's files.
    end_with_parent()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the workers are the parallelism
    try:
        encoder = Tokenizer.load(tokenizer)
        while True:
            unit = requests.recv()
            result = write_shard(unit, encoder, settings, directory)
            requests.send(Done(unit.name, result, peak_memory()))
            del unit, result
    except EOFError:
        return
    # Any other error is a bug; its traceback goes to stderr.
    except (ValueError, OSError, MemoryError) as error:
        requests.send(error)


def peak_memory() -> int:
    """The most memory this process has held, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # Linux, whose ru_maxrss begins with the size of the spawning process
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
