"""One sentence for a process of a run whose other processes are gone."""

from __future__ import annotations

import ctypes
import os
import re
import signal

import jax

# CPUs report "Gloo all-reduce failed: ... Connection closed by peer [::1]:5", NCCL "remote process
# exited or there was a network error".
_LOST = re.compile(
    r"gloo.*(closed by peer|reset by peer|broken pipe|connect)|remote process exited",
    re.IGNORECASE | re.DOTALL,
)
_ADDRESS = re.compile(r"(?:peer|error) (\[[0-9a-f.:]+\]:\d+)")
_RESUME = "the same command, given to all processes, resumes from the last checkpoint"
_ABORTED = (
    "\nbert-jax: error: JAX has ended this process; its message above says why. If it has lost the "
    f"connection to another process (the coordinator is process 0), {_RESUME}\n"
).encode()
_USER_MISTAKE = 2


def lost_process(error: BaseException) -> str | None:
    """Return a sentence for an error caused by the end of another process; None for others."""
    # JAX raises some of them as ValueError.
    if not isinstance(error, jax.errors.JaxRuntimeError | ValueError):
        return None
    if not jax.distributed.is_initialized() or not _LOST.search(str(error)):
        return None
    count, index = jax.process_count(), jax.process_index()
    address = _ADDRESS.search(str(error))
    where = f" (last seen at {address[1]})" if address else ""
    gone = f"process {1 - index}" if count == 2 else f"one of the other {count - 1} processes"
    return (
        f"{gone}{where} has ended or cannot be reached, and process {index} cannot continue "
        f"without it. Its own last lines say why, unless it was killed; {_RESUME}"
    )


def explain_aborts() -> None:
    """End this process with a sentence when JAX aborts it, instead of a core dump.

    JAX does so from a thread of its own, without raising an error, when the coordinator is gone or
    another process no longer sends heartbeats. Its own message comes first.
    """
    ctypes.CDLL(None).signal(signal.SIGABRT, _HANDLER)


def _explain(signum: int) -> None:
    os.write(2, _ABORTED)
    os._exit(_USER_MISTAKE)


# Set in C: Python runs its own handlers only in the main thread, which may be waiting for ever.
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)(_explain)
