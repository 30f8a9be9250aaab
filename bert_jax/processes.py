"""Determine the cores and memory, tune memory management, and control when worker processes end.

This module does not import JAX, since the command line uses it before importing a subcommand.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.metadata
import importlib.util
import logging
import os
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
# The unshared memory of a worker process before it reads any data. It was 17 MiB in a data loader
# and 21 MiB in corpus preparation (Linux, 2026-11).
WORKER_BYTES = 16 << 20


_commands: list[float] = []


def command_begins() -> None:
    """Record that this process runs a single command, which began when the process did."""
    if began := _process_began():
        _commands.append(began)


def command_began() -> float | None:
    """Return when this process's command began, in seconds since 1970, or None.

    Only the first call returns the time, because a second run in the same process began later. The
    result is also None in programs that import this package, and on systems without /proc.
    """
    return _commands.pop() if _commands else None


def _process_began(status: Path = Path("/proc/self/stat")) -> float | None:
    """Return the time at which this process was created, in seconds since 1970; None if unknown."""
    fields = _read_text(status).rpartition(")")[2].split()
    if len(fields) < 20:
        return None
    ticks = int(fields[19])  # Field 22 is starttime (Linux, proc(5)).
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes(membership: Path = Path("/proc/self/cgroup"), cgroups: Path = _CGROUPS) -> int:
    """Return the machine's memory in bytes, or a lower limit set by a cgroup or `ulimit -v`.

    Args:
      membership: a file with lines of the form "number:controllers:path"; for cgroups version 2,
        the list of controllers is empty (Linux, cgroups(7)).
      cgroups: the root directory of cgroups. A group's limit applies to all groups below it.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for line in _read_text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = PurePosixPath(path.lstrip("/"))
        groups = [_read_text(root / part / name).strip() for part in (group, *group.parents)]
        limits += [int(limit) for limit in groups if limit.isdigit()]
    return min(limits)


def format_bytes(size: int) -> str:
    """Format a size in bytes using the largest binary unit that fits, such as "23.4 GiB"."""
    if size >= 1 << 70:
        return "over 1,023 EiB"
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def check_workers(key: str, workers: int) -> None:
    """Check that worker processes fit in memory.

    Args:
      key: the option or config key that sets the number of workers.
      workers: the number of worker processes.

    Raises:
      ValueError: the processes need more memory than the machine has.
    """
    needed, memory = workers * WORKER_BYTES, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}={workers}: that many worker processes need at least "
            f"{format_bytes(needed)}, but this machine has {format_bytes(memory)}. Use at most "
            f"{memory // WORKER_BYTES}, and preferably one per core"
        )


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # The system is not Linux, or there is no limit.
        return ""


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Pause garbage collection while modules are imported, and then ignore their objects.

    The modules of `bert-jax pretrain` create 290,000 containers, which live until the process ends.
    A run of two steps spent 0.2 s on garbage collection, and 0.7 s of 7.5 s without this (AMD EPYC,
    2026-11).
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


# Constants from glibc's malloc.h
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_INT = 2**31 - 1
_SMALLEST_RETURNED = 1 << 16  # bytes


def tune_malloc_for_training() -> None:
    """Configure malloc for training on a CPU: keep freed blocks of less than `largest_block` bytes.

    Call this before starting any threads.

    In each step, XLA's CPU client allocates all temporary buffers as one block, from a thread of
    its own, and then frees the block. By default, glibc requests this block from the kernel and
    returns it every time, so each step causes page faults on all of its pages. A BERT-mini step on
    32 x 128 tokens took 640 ms when its 716 MB block was kept, and 690 to 860 ms otherwise (2 cores
    of a virtual machine, 2026-11). Up to three of these blocks were kept, since a step may begin
    before the previous step's block is freed. Smaller blocks are kept as well.

    This has no effect if malloc is not glibc's, if JAX may find an accelerator, or if the user has
    configured malloc through GLIBC_TUNABLES (even if empty) or a MALLOC_* variable such as
    MALLOC_ARENA_MAX.
    """
    if _is_tunable() and not accelerators_possible():
        keep_blocks(largest_block(memory_bytes()))


def return_freed_memory() -> None:
    """Configure malloc to return freed arrays to the operating system immediately.

    By default, glibc gradually starts to keep freed blocks of up to 32 MiB. Converting weights one
    by one then leaves holes of this size: exporting BERT-large took 2.6 GiB without this call and
    1.7 GiB with it. This has no effect without glibc or if the user has configured malloc.
    """
    if _is_tunable():
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _SMALLEST_RETURNED)


def _is_tunable() -> bool:
    """Return whether malloc is glibc's and is not configured by an environment variable."""
    configured = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    return platform.libc_ver()[0] == "glibc" and not configured


def largest_block(memory: int) -> int:
    """Return the size in bytes of the largest freed block to keep.

    The size is 1/16 of the memory, so that kept blocks do not use it up, but always less than
    2 GiB.
    """
    return min(memory // 16, _LARGEST_INT)  # mallopt takes an int


def keep_blocks(largest: int) -> None:
    """Configure malloc to keep freed blocks of less than `largest` bytes, for all threads."""
    mallopt = ctypes.CDLL(None).mallopt
    # Before version 2.35, glibc rejects thresholds above 32 MiB.
    if not mallopt(_M_MMAP_THRESHOLD, largest):
        logging.getLogger(__name__).info(
            "glibc %s cannot keep large freed buffers, so training on a CPU is slower",
            platform.libc_ver()[1],
        )
        return
    mallopt(_M_TRIM_THRESHOLD, -1)
    # Use a single arena, because per-thread arenas hold blocks of at most 64 MiB, and larger
    # blocks would still be requested from the kernel.
    mallopt(_M_ARENA_MAX, 1)


def accelerators_possible() -> bool:
    """Return whether JAX might use a device other than the CPU, without importing JAX."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if platforms:
        return platforms != "cpu"
    installed = importlib.metadata.entry_points(group="jax_plugins")
    return bool(installed) or any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))


# The signals sent by Ctrl-C, by a scheduler that stops a job, and by a terminal that is closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Ignore stop signals, which reach the whole process group and are handled by the parent."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def end_with_parent() -> None:
    """Start a thread that ends this worker process when its parent ends for any reason."""
    threading.Thread(target=_exit_after_parent, daemon=True).start()


def _exit_after_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker process must have a parent"
    parent.join()
    os._exit(1)


_MAIN_GUARD = (
    '. Worker processes import the main script, so put its calls below `if __name__ == "__main__":`'
)


def _is_unguarded_script() -> bool:
    """Return whether this program is a script that would run again when a worker imports it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    # A notebook, or a module run with `python -m`, is not such a script.
    if file is None or getattr(main, "__spec__", None) is not None:
        return False
    return "__name__" not in _read_text(Path(file))


def cause_of_death(process: BaseProcess, remedy: str) -> str:
    """Wait for a worker process to end and return the reason, such as "was killed by SIGTERM".

    Args:
      process: the worker process.
      remedy: advice to append if the process may have run out of memory.
    """
    process.join()
    code = process.exitcode or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL, which the system sends if it runs out of memory. {remedy}"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code > 0:
        hint = _MAIN_GUARD if _is_unguarded_script() else ""
        return f"exited with code {code}; its traceback is printed above{hint}"
    return "exited with code 0"
