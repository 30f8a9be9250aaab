"""Report in one sentence that a run's other processes have ended."""

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
