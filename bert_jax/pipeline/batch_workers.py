"""Make requested batches in the background, in a thread or in processes.

A worker process sends its batches through a pipe, which closes when the process ends. The
alternatives are shared memory and semaphores, as in `multiprocessing.Queue` and Grain's
`mp_prefetch`. Their names outlive a killed process group, and a process waits on them forever if
its peer is killed in the middle of a message.
"""

from __future__ import annotations

import atexit
import contextlib
import pickle
import signal
import threading
import traceback
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Protocol

from bert_jax.pipeline.examples import Batch
from bert_jax.processes import STOP_SIGNALS, cause_of_death, end_with_parent, ignore_stop_signals

# How long a thread may take to finish its current batch before it is abandoned.
_CLOSING_SECONDS = 5.0
# Users can fix errors of these types, so a worker passes them on with their type. Any other error
# is a bug.
_KEPT_TYPES = (ValueError, OSError, MemoryError)


class Batches(Protocol):
    """Batches indexed by step; a step after the last one raises IndexError."""

    def __len__(self) -> int: ...

    def __getitem__(self, step: int, /) -> Batch: ...


class _Ended:
    """A marker for the end of a process's messages."""


class BatchWorker(Protocol):
    """A worker that makes batches in the order in which they are requested.

    Attributes:
      name: the worker's name in messages.
    """

    name: str

    def request(self, step: int) -> None:
        """Request the batch for a step, without waiting for it."""

    def take(self, seconds: float) -> Batch:
        """Return the next requested batch, or raise the error that occurred while making it.

        Raises:
          queue.Empty: the batch is not ready within `seconds`.
          OSError: the worker process has ended.
        """

    def close(self) -> None:
        """Stop immediately."""


class ThreadWorker:
    """A `BatchWorker` in a thread of this process."""

    def __init__(self, source: Batches):
        self.name = "the data thread"
        self._steps: SimpleQueue[int | None] = SimpleQueue()
        self._made: SimpleQueue[Batch | Exception] = SimpleQueue()
        self._thread = threading.Thread(
            target=_make, args=(source, self._steps, self._made), name="batches", daemon=True
        )
        self._thread.start()

    def request(self, step: int) -> None:
        """Request a batch; see `BatchWorker`."""
        self._steps.put(step)

    def take(self, seconds: float) -> Batch:
        """Return the next batch; see `BatchWorker`."""
        made = self._made.get(timeout=seconds)
        if isinstance(made, Exception):
            raise made
        return made

    def close(self) -> None:
        """Stop the thread, or abandon it if it hangs, since a thread cannot be killed."""
        while not self._steps.empty():
            with contextlib.suppress(Exception):
                self._steps.get_nowait()
        self._steps.put(None)
        self._thread.join(_CLOSING_SECONDS)


def _make(
    source: Batches, steps: SimpleQueue[int | None], made: SimpleQueue[Batch | Exception]
) -> None:
    while (step := steps.get()) is not None:
        try:
            made.put(source[step])
        except Exception as error:
            made.put(error)


class ProcessWorker:
    """A `BatchWorker` in a separate process.

    The process is spawned, so the program's main module must be importable without side effects.
    """

    def __init__(self, source: Batches, name: str):
        self.name = name
        context = get_context("spawn")
        self._connection, remote = context.Pipe()
        self._process = context.Process(target=_serve, args=(remote, source), daemon=True)
        self._made: SimpleQueue[Batch | Exception | _Ended] = SimpleQueue()
        self._closing = threading.Event()
        # A batch does not fit in a pipe's buffer, so a thread receives it ahead of time.
        self._receiver = threading.Thread(
            target=_receive,
            args=(self._process, self._connection, remote, self._made, self._closing),
            name=name,
            daemon=True,
        )
        self._receiver.start()
        # Close the worker before multiprocessing's exit handler runs. That handler would send the
        # process a SIGTERM, which the process ignores, and then wait for the process to end.
        atexit.register(self.close)

    def request(self, step: int) -> None:
        """Request a batch; see `BatchWorker`."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `take` reports the cause
            self._connection.send(step)

    def take(self, seconds: float) -> Batch:
        """Return the next batch; see `BatchWorker`."""
        made = self._made.get(timeout=seconds)
        if isinstance(made, _Ended):
            remedy = "Use fewer workers (loader.num_workers) or prefetch fewer batches (prefetch)"
            raise OSError(f"{self.name} {cause_of_death(self._process, remedy)}")
        if isinstance(made, Exception):
            raise made
        return made

    def close(self) -> None:
        """Stop immediately; see `BatchWorker`."""
        atexit.unregister(self.close)
        self._closing.set()
        if self._process.pid is not None:
            self._process.kill()  # killing is safe, since the process only reads
        self._receiver.join()
        if self._process.pid is not None:
            self._process.join()
        self._connection.close()


def _receive(
    process: SpawnProcess,
    connection: Connection,
    remote: Connection,
    made: SimpleQueue[Batch | Exception | _Ended],
    closing: threading.Event,
) -> None:
    """Start the process, then forward its messages until it ends."""
    # Block these signals now, so that the process inherits the signal mask: it spends about a
    # second importing modules before it can ignore the signals itself.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        process.start()
    except Exception as error:
        made.put(error)
        return
    finally:
        remote.close()  # so that the pipe closes when the process ends
    if closing.is_set():
        process.kill()
    try:
        while True:
            made.put(connection.recv())
    except (EOFError, OSError):  # OSError: the process ended in the middle of a message
        made.put(_Ended())


def _serve(connection: Connection, source: Batches) -> None:
    """Send each requested batch, or the error raised while making it, until the pipe closes."""
    ignore_stop_signals()  # the parent may need more batches before it can save a checkpoint
    end_with_parent()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            step = connection.recv()
            try:
                message = pickle.dumps(source[step], protocol=pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                message = pickle.dumps(_portable(error))
            connection.send_bytes(message)


def _portable(error: Exception) -> Exception:
    """Return the error in a form that any process can unpickle, with its traceback as a note."""
    trace = "".join(traceback.format_exception(error))
    error.add_note(f"The data worker's traceback:\n{trace}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # for example, because the constructor takes more than a message
        kind = next((kind for kind in _KEPT_TYPES if isinstance(error, kind)), RuntimeError)
        message = str(error) if kind is not RuntimeError else f"{type(error).__name__}: {error}"
        error = kind(message)
        error.add_note(f"The data worker's traceback:\n{trace}")
    return error
