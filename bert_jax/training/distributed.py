"""Connect a run's processes, share values between them, stop them together, and detect lost ones.

SIGTERM, SIGHUP and Ctrl-C make all processes stop at the next step.
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

# On CPUs, Gloo reports "Gloo all-reduce failed: ... Connection closed by peer [::1]:5". NCCL
# reports "remote process exited or there was a network error".
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
    """Return a message if an error was caused by losing another process; otherwise, return None."""
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
        "without it. The end of that process's output shows the reason, unless it was killed; "
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


# Use a C handler, since Python handlers run only in the main thread, which may be waiting forever.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain)


# These variables hold the number of processes that a launcher started together. SLURM_NTASKS is
# not used: Slurm also sets it in `salloc` shells and batch scripts, which are single processes.
# Only `srun` sets SLURM_STEP_NUM_TASKS, the number of tasks in a job step.
_SIZE_VARIABLES = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
_LOCAL_VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
# How long a failed process waits for the other processes to fail and exit too.
_LEAVING_SECONDS = 15.0


def join(force: bool = False) -> None:
    """Connect this process to the run's other processes, if there are any.

    The connection is configured by JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID,
    which launch/local.sh sets. Without them, `jax.distributed.initialize` detects a Slurm, Open MPI
    or TPU cluster. Call this function before anything uses a device.

    Args:
      force: connect even if nothing indicates that there are other processes. This is needed on a
        Cloud TPU pod, whose hosts find each other through the metadata server.

    Raises:
      ValueError: only some of the three variables are set, or they are not numbers.
    """
    variables = [name for name in _LOCAL_VARIABLES if os.environ.get(name)]
    if variables:
        _join_by(variables)
    elif force or _cluster_size() > 1:
        jax.distributed.initialize()
    if jax.distributed.is_initialized():
        explain_aborts()


def leave(code: int, *, lost: bool = False) -> None:
    """Exit this failed process if other processes of the run are still running.

    If this is the only process or if the other processes exit too, the function returns. JAX itself
    would wait up to 5 minutes. During that time, the other processes would wait in vain for data
    from this process, and the launcher could not notice the failure and stop them.

    Args:
      code: the exit code.
      lost: whether this process failed because another process was lost. If so, only process 0, the
        coordinator, waits for the other processes. If process 0 itself was lost, JAX would abort
        any process that waits.
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
    """Return how many processes a launcher started together, or 1 if there was no launcher."""
    count = os.environ.get("JAX_NUM_PROCESSES", "")
    return max(int(count) if count.isdigit() else 1, _cluster_size())


def agreed(value: int) -> int:
    """Return the first process's value on all processes.

    All processes must call this together. This is necessary because the processes may see different
    files if another run is writing them at the same time.
    """
    return int(multihost_utils.broadcast_one_to_all(np.int32(value)))


def on_first_process(on_report: OnReport | None) -> OnReport:
    """Return `on_report` if it is given and this is process 0; otherwise, return `discard`."""
    return on_report if on_report is not None and jax.process_index() == 0 else discard


def check_same(inputs: Mapping[str, object]) -> None:
    """Check that all processes of a run have the same inputs.

    JAX assumes, without checking, that all processes pass the same values to a step. All processes
    must call this together.

    Args:
      inputs: plain JSON values, keyed by names that are the same on all processes.

    Raises:
      ValueError: the inputs differ. The error is raised on every process. The message lists each
        input that differs, and the processes whose value differs from that of the first process.
    """
    texts = [json.dumps(value, sort_keys=True) for value in inputs.values()]
    digests = [np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8) for text in texts]
    gathered = multihost_utils.process_allgather(np.stack(digests), tiled=False)
    by_process = np.asarray(gathered).reshape(-1, len(inputs), 32)
    lines = []
    for number, name in enumerate(inputs):
        others = np.flatnonzero((by_process[:, number] != by_process[0, number]).any(-1))
        if len(others):
            lines.append(f"  {name}: process {', '.join(map(str, others))}")
    if lines:
        raise ValueError(
            "the processes of this run have different inputs. "
            "These inputs differ from process 0's:\n"
            + "\n".join(lines)
            + "\nStart all processes with the same command, config files, data and versions."
        )


def _join_by(variables: list[str]) -> None:
    if len(variables) < len(_LOCAL_VARIABLES):
        missing = [name for name in _LOCAL_VARIABLES if name not in variables]
        raise ValueError(
            f"{', '.join(variables)} set without {', '.join(missing)}: set all three or none."
        )
    address, count, index = (os.environ[name] for name in _LOCAL_VARIABLES)
    try:
        num_processes, process_id = int(count), int(index)
    except ValueError:
        raise ValueError(
            f"JAX_NUM_PROCESSES={count!r} and JAX_PROCESS_ID={index!r} must be whole numbers."
        ) from None
    jax.distributed.initialize(address, num_processes, process_id)


def _cluster_size() -> int:
    sizes = [os.environ.get(name, "1") for name in _SIZE_VARIABLES]
    hosts = os.environ.get("TPU_WORKER_HOSTNAMES", "").split(",")
    return max([int(size) for size in sizes if size.isdigit()] + [len(hosts)])


# The exit codes that a shell reports for a command terminated by these signals.
TERMINATED = 128 + signal.SIGTERM
INTERRUPTED = 128 + signal.SIGINT
HUNG_UP = 128 + signal.SIGHUP

_INTERRUPTED_TEXT = (
    b"\nstopping after the current step (or after the first one, if training has not started yet) "
    b"and then saving; press Ctrl-C again to exit immediately, or after a save that has begun\n"
)


class StopRequested(Exception):
    """A run was asked to stop during an evaluation or a prediction."""


class StopRequest:
    """A request to save and stop a run, made by a call of `request` or a signal in a `with` block.

    The signals are SIGTERM, SIGHUP and SIGINT (Ctrl-C). Python allows signal handlers only in the
    main thread. In any other thread, the block does not handle signals, and only `request` stops
    the run.

    Each process has its own instance. All processes must call `stop_now` the same number of times,
    since they agree to stop at a call that none of them has made yet.

    A request cannot be withdrawn, so create a new instance for every run, even a resumed one.

    A second Ctrl-C raises KeyboardInterrupt. Signals that were ignored before, such as SIGINT in a
    shell's background jobs or SIGHUP under `nohup`, remain ignored.

    Attributes:
      exit_code: 130 after Ctrl-C, 129 after SIGHUP, otherwise 143.
    """

    def __init__(self) -> None:
        self.exit_code = TERMINATED
        self._signalled = False
        self._calls = 0
        self._previous: dict[int, signal._HANDLER] = {}
        # Find the terminals now, since a closed terminal is no longer recognized as one.
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is not threading.main_thread():
            return self
        # With multiple processes, jax.distributed has its own handler, which notifies all of them.
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
        # Restore SIGTERM last, since the handlers of the other signals send it.
        for signum, handler in reversed(self._previous.items()):
            signal.signal(signum, handler)

    def request(self) -> None:
        """Ask the run to save and stop after the current step; any thread may call this."""
        if jax.process_count() == 1:
            self._signalled = True
        else:  # the handler of jax.distributed notifies the other processes
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_now(self) -> bool:
        """Return whether to save and stop; the answer is the same on every process."""
        if jax.process_count() == 1:
            return self._signalled
        # Count calls, not steps. Before the first call, JAX assumes that every process is at 0. If
        # steps were counted and a signal arrived while a run was resuming at step 1,000, all
        # processes would wait for step 1 forever.
        self._calls += 1
        return multihost_utils.reached_preemption_sync_point(self._calls)

    def raise_if_stopping(self) -> None:
        """Raise StopRequested if the run should stop.

        Evaluations call this after every batch.
        """
        if self.stop_now():
            raise StopRequested

    def while_waiting(self) -> None:
        """Raise StopRequested if this is the run's only process and it has received a signal.

        Call this repeatedly during any wait that may never end. With multiple processes, a process
        cannot stop while it waits for a batch. The other processes have already begun the step that
        uses this batch, so their states would differ from its state.
        """
        if self._signalled:
            raise StopRequested

    def _terminate(self, signum: int, frame: FrameType | None) -> None:
        self._signalled = True

    def _hang_up(self, signum: int, frame: FrameType | None) -> None:
        """Stop the run as SIGTERM would, and discard output, since the terminal has been closed."""
        self.exit_code = HUNG_UP
        for descriptor in self._terminals:
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        os.kill(os.getpid(), signal.SIGTERM)

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.exit_code = INTERRUPTED
        os.kill(os.getpid(), signal.SIGTERM)
        # Do not use print, since the signal may have interrupted another print. Ignore errors,
        # since the reader of a pipe, such as `tee`, gets the same Ctrl-C and may have exited.
        with contextlib.suppress(OSError):
            os.write(2, _INTERRUPTED_TEXT)
