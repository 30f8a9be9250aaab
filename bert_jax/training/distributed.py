"""Coordinate the processes of a run: join, agree, stop together, and notice a lost one.

SIGTERM, SIGHUP and Ctrl-C are requests that all processes stop at the next step.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Mapping
from types import FrameType, TracebackType
from typing import NoReturn

import jax
import numpy as np
from jax.experimental import multihost_utils

from bert_jax.training.reports import OnReport, discard

# CPUs report "Gloo all-reduce failed: ... Connection closed by peer [::1]:5", NCCL "remote process
# exited or there was a network error".
_LOST = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|connect)|remote process exited",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS = re.compile(r"(?:peer|error) (\[[0-9a-f.:]+\]:\d+)")
_RESUME = "run the same command again on all processes to resume from the last checkpoint"
_ABORTED = (
    "\nbert-jax: error: JAX has ended this process; see its message above. If the connection to "
    f"another process was lost (the coordinator is process 0), {_RESUME}\n"
).encode()
_USER_MISTAKE = 2


def lost_process(error: BaseException) -> str | None:
    """Return a message for an error caused by the end of another process; None for others."""
    # JAX raises some of these errors as ValueError.
    if not isinstance(error, jax.errors.JaxRuntimeError | ValueError):
        return None
    if not jax.distributed.is_initialized() or not _LOST.search(str(error)):
        return None
    count, index = jax.process_count(), jax.process_index()
    address = _ADDRESS.search(str(error))
    where = f" (last seen at {address[1]})" if address else ""
    lost = f"process {1 - index}" if count == 2 else f"one of the other {count - 1} processes"
    return (
        f"{lost}{where} has ended or cannot be reached, and process {index} cannot continue "
        "without it. See that process's last lines for the reason (a killed process prints none); "
        f"{_RESUME}"
    )


def explain_aborts() -> None:
    """Exit with a message instead of a core dump when JAX aborts this process.

    JAX aborts from a background thread, without raising an error, when the coordinator has ended or
    another process no longer sends heartbeats. JAX prints its own message first.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _HANDLER)


def _explain(signum: int) -> None:
    os.write(2, _ABORTED)
    os._exit(_USER_MISTAKE)


# A C handler, since Python handlers run only in the main thread, which may wait forever.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain)


# How many processes a launcher started together. Slurm sets SLURM_NTASKS in the shell of `salloc`
# and in a batch script too, where a process is alone: only `srun` sets the tasks of a step.
_SIZE_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# How long a process that failed waits for the others to fail too, and all to end as they should.
_LEAVING_SECONDS = 15.0


def join(force: bool = False) -> None:
    """Connects this process to the others; does nothing where it is alone.

    Looks at JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID (launch/local.sh sets
    them), else lets `jax.distributed.initialize` find a Slurm, Open MPI or TPU cluster. To be
    called before anything else touches a device.

    Args:
      force: connect even where nothing here tells of other processes, as on a Cloud TPU pod, whose
        hosts learn of each other from the metadata server.

    Raises:
      ValueError: only some of the three variables are set, or they are not numbers.
    """
    given = [name for name in _LOCAL_VARIABLES if os.environ.get(name)]
    if given:
        _join_given(given)
    elif force or _cluster_size() > 1:
        jax.distributed.initialize()
    if jax.distributed.is_initialized():
        explain_aborts()


def leave(code: int, *, lost: bool = False) -> None:
    """Ends this process, which has failed, with exit code `code` if others of the run go on.

    Args:
      lost: whether it failed because another process ended. Only process 0, the coordinator, waits
        in that case; in the others JAX would abort if process 0 is the one that ended.

    Returns where it is alone, and where the others have come to their end as well. JAX would wait
    for them for 5 minutes: for so long the others compute nothing, since they wait for what this
    one was to send, and the launcher that would end them hears of nothing.
    """
    if not jax.distributed.is_initialized():
        return
    if lost and jax.process_index() != 0:
        _end(code)
    ending = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    ending.start()
    ending.join(_LEAVING_SECONDS)
    if ending.is_alive():
        _end(code)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def launched_together() -> int:
    """How many processes a launcher told this one that they are; 1 where it is alone."""
    told = os.environ.get("JAX_NUM_PROCESSES", "")
    return max(int(told) if told.isdigit() else 1, _cluster_size())


def agreed(found: int) -> int:
    """What the first process found, for all of them, which must all ask.

    Each sees files for itself, and another run may write them while they look.
    """
    return int(multihost_utils.broadcast_one_to_all(np.int32(found)))


def on_first_process(on_report: OnReport | None) -> OnReport:
    """Return `on_report` on process 0, and `discard` on the others or if it is None."""
    return on_report if on_report is not None and jax.process_index() == 0 else discard


def check_same(given: Mapping[str, object]) -> None:
    """Refuses a run whose processes were given different things, before they learn apart by them.

    JAX takes what each process passes to a step for the same and does not look.

    Args:
      given: plain JSON values by name, of the same names on all processes, which must all ask.

    Raises:
      ValueError: on every process; names what differs from the first process's, and where.
    """
    texts = [json.dumps(value, sort_keys=True) for value in given.values()]
    digests = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in texts]
    gathered = multihost_utils.process_allgather(np.stack(digests), tiled=False)
    by_process = np.asarray(gathered).reshape(-1, len(given), 32)
    lines = []
    for place, name in enumerate(given):
        others = np.flatnonzero((by_process[:, place] != by_process[0, place]).any(-1))
        if len(others):
            lines.append(f"  {name}: of process {', '.join(map(str, others))}")
    if lines:
        raise ValueError(
            "the processes of this run were given different things. Not as of process 0:\n"
            + "\n".join(lines)
            + "\nStart all with the same command, config files, data and versions"
        )


def _join_given(given: list[str]) -> None:
    if len(given) < len(_LOCAL_VARIABLES):
        missing = [name for name in _LOCAL_VARIABLES if name not in given]
        raise ValueError(f"{', '.join(given)} set without {', '.join(missing)}: set all or none")
    address, count, index = (os.environ[name] for name in _LOCAL_VARIABLES)
    try:
        num_processes, process_id = int(count), int(index)
    except ValueError:
        raise ValueError(
            f"JAX_NUM_PROCESSES={count!r} and JAX_PROCESS_ID={index!r} must be whole numbers"
        ) from None
    jax.distributed.initialize(address, num_processes, process_id)


def _cluster_size() -> int:
    sizes = [os.environ.get(name, "1") for name in _SIZE_VARIABLES]
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return max([int(size) for size in sizes if size.isdigit()] + [len(hosts)])


# What a shell reports for a command ended by the signal.
TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
HUNG_UP = 128 + signal.SIGHUP

_INTERRUPTED_TEXT = (
    b"\nstopping after the step under way (while starting: after the first), then saving; "
    b"press Ctrl-C again to leave earlier, after a save that has already begun\n"
)


class StopRequested(Exception):
    """A run was told to stop in the middle of an evaluation or of predictions."""


class StopRequest:
    """Ask a run to save and end: by `request`, or by SIGTERM, SIGHUP or Ctrl-C in a `with` block.

    Python allows signal handlers only in the main thread. In another thread the block leaves the
    signals unchanged, and only `request` stops the run.

    Of several processes each has one, and all ask equally often: they agree upon a question, one
    that none of them has asked yet.

    A request cannot be withdrawn: give every run, including one that resumes, a new instance.

    A second Ctrl-C raises KeyboardInterrupt. Signals that were ignored before, such as SIGINT in a
    shell's background jobs or SIGHUP under `nohup`, remain ignored.

    exit_code: 143, 130 after a Ctrl-C, or 129 after SIGHUP.
    """

    def __init__(self) -> None:
        self.exit_code = TERMINATED
        self._signalled = False
        self._questions = 0
        self._previous: dict[int, signal._HANDLER] = {}
        # A closed terminal is no longer recognized as a terminal.
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self
        # With several processes jax.distributed has its own handler, which tells all of them.
        if jax.process_count() == 1:
            self._previous[signal.SIGTERM] = signal.signal(signal.SIGTERM, self._terminate)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous[signal.SIGINT] = signal.signal(signal.SIGINT, self._interrupt)
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            self._previous[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # SIGTERM last, since the other handlers rely on its handler.
        for signum, handler in reversed(self._previous.items()):
            signal.signal(signum, handler)

    def request(self) -> None:
        """Have the run save and end after the step under way; any thread may call this."""
        if jax.process_count() == 1:
            self._signalled = True
        else:  # the handler of jax.distributed passes it on to the other processes
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_now(self) -> bool:
        """Whether to save and leave; the same answer on every process."""
        if jax.process_count() == 1:
            return self._signalled
        # Not the step: before the first question JAX takes every process to be at 0, so that a
        # signal while a run resumes at step 1,000 would have all wait for question 1 for ever.
        self._questions += 1
        return multihost_utils.reached_preemption_sync_point(self._questions)

    def raise_if_stopping(self) -> None:
        """Raise StopRequested if the run should stop; called after every batch of an evaluation."""
        if self.stop_now():
            raise StopRequested

    def while_waiting(self) -> None:
        """Raise StopRequested if this process has been signaled and is the run's only one.

        Meant for waits that may never end. One of several processes cannot stop during a wait: the
        others have already begun the step whose batch it lacks, so their states differ.
        """
        if self._signalled:
            raise StopRequested

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self._signalled = True

    def _hang_up(self, signum: int, frame: FrameType | None) -> None:
        """Stop as after SIGTERM; writes to the closed terminal would fail, so discard them."""
        self.exit_code = HUNG_UP
        for descriptor in self._terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.exit_code = INTERRUPTED
        os.kill(os.getpid(), signal.SIGTERM)
        # Not by print, as the signal may have come in the middle of another one; and the reader of
        # a pipe, such as `tee`, got the same Ctrl-C and may be gone.
        with contextlib.suppress(OSError):
            os.write(2, _INTERRUPTED_TEXT)
