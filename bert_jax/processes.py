"""Determine and tune this process's memory, and manage the life of worker processes.

Imports no JAX: the command line calls this before it imports a verb.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import logging
import os
import platform
import resource
import signal
import threading
from multiprocessing import parent_process
from multiprocessing.process import BaseProcess
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
# Unshared memory of a worker process before it has read anything: measured 17 MiB for a loader's
# worker and 21 MiB for a corpus preparation's (Linux, 2026-11).
WORKER_BYTES = 16 << 20


def memory_bytes(membership: Path = Path("/proc/self/cgroup"), cgroups: Path = _CGROUPS) -> int:
    """Return the machine's memory, or less if a control group or `ulimit -v` sets a lower limit.

    Args:
      membership: lines "number:controllers:path", no controllers in version 2 (Linux, cgroups(7)).
      cgroups: the directory of control groups; a group's limit applies to all groups below it.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = cgroups / "memory" if controllers else cgroups
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        group = PurePosixPath(path.lstrip("/"))
        groups = [_text(root / part / name).strip() for part in (group, *group.parents)]
        limits += [int(limit) for limit in groups if limit.isdigit()]
    return min(limits)


def format_bytes(size: int) -> str:
    """Return a size in the largest binary unit that keeps it at 1 or more, such as "23.4 GiB"."""
    if size >= 1 << 70:
        return "over 1,023 EiB"
    value, unit = float(size), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size} bytes" if unit == "bytes" else f"{value:,.1f} {unit}"


def check_workers(key: str, workers: int) -> None:
    """Raise ValueError if that many worker processes cannot fit into memory.

    key: the option or config key that sets their number, for the message.
    """
    needed, memory = workers * WORKER_BYTES, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}={workers}: that many worker processes take at least {format_bytes(needed)}, "
            f"but this machine has {format_bytes(memory)}. Use at most {memory // WORKER_BYTES}, "
            "preferably one per core"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not Linux, or no limit at this level
        return ""


# malloc.h of glibc
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_INT = 2**31 - 1
_SMALLEST_RETURNED = 1 << 16  # bytes


def tune_malloc_for_training() -> None:
    """Tells malloc to keep freed blocks up to `largest_block`; to be called before threads start.

    XLA's CPU client allocates all temporary buffers of a step as one block, from a thread of its
    own, and frees it after the step. glibc gets such a block from the kernel and gives it back,
    so that every step touches all its pages anew: BERT-mini at 32 x 128 tokens took 640 ms with
    its 716 MB kept and 690 to 860 ms without (2 cores of a virtual machine, 2026-11).
    Up to three such blocks were seen kept, as the next step may begin before the last one's is
    freed; smaller ones stay as well.

    Nothing is changed where it would not help or is decided already: without glibc, where JAX may
    find an accelerator, and where GLIBC_TUNABLES is set, if only to nothing, or a variable of
    malloc's own (MALLOC_ARENA_MAX, ...).
    """
    if _is_open() and not accelerators_possible():
        keep_blocks(largest_block(memory_bytes()))


def return_freed_memory() -> None:
    """Tells malloc to give freed arrays back to the system at once; nothing where it is decided.

    glibc comes to keep freed blocks of up to 32 MiB, which weights that are turned and passed on
    one by one leave as holes: exporting BERT-large held 2.6 GiB without this and 1.7 GiB with it.
    """
    if _is_open():
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _SMALLEST_RETURNED)


def _is_open() -> bool:
    """Whether malloc is glibc's and nobody has told it what to do."""
    decided = any(name == "GLIBC_TUNABLES" or name.startswith("MALLOC_") for name in os.environ)
    return platform.libc_ver()[0] == "glibc" and not decided


def largest_block(memory: int) -> int:
    """Bytes: 1/16 of the memory, so that what is kept cannot fill it, and less than 2 GiB."""
    return min(memory // 16, _LARGEST_INT)  # mallopt takes an int


def keep_blocks(largest: int) -> None:
    """Keeps every freed block below `largest` bytes, whichever thread allocates it."""
    mallopt = ctypes.CDLL(None).mallopt
    # glibc before 2.35 takes no threshold above 32 MiB.
    if not mallopt(_M_MMAP_THRESHOLD, largest):
        logging.getLogger(__name__).info(
            "glibc %s keeps no large buffers: steps on a CPU are slower", platform.libc_ver()[1]
        )
        return
    mallopt(_M_TRIM_THRESHOLD, -1)
    # A thread's own arena holds blocks of up to 64 MiB; larger ones come from the kernel again.
    mallopt(_M_ARENA_MAX, 1)


def accelerators_possible() -> bool:
    """Whether JAX might run on something else than the CPU, told without starting it."""
    wanted = os.environ.get("JAX_PLATFORMS", "")
    if wanted:
        return wanted != "cpu"
    installed = importlib.metadata.entry_points(group="jax_plugins")
    return bool(installed) or any(map(importlib.util.find_spec, ("jax_plugins", "libtpu")))


# Ctrl-C, a scheduler's request to stop, and a closed terminal.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def ignore_stop_signals() -> None:
    """Ignore signals sent to the whole process group, which the parent handles."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


def end_with_parent() -> None:
    """End this worker as soon as its parent is gone, however it died; returns at once."""
    threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has a parent"
    parent.join()
    os._exit(1)


def cause_of_death(process: BaseProcess, remedy: str) -> str:
    """Wait for an ending worker and return how it ended, with `remedy` if memory may have run out.

    The result is a predicate for a message, such as "was killed by SIGTERM".
    """
    process.join()
    code = process.exitcode or 0
    if code == -signal.SIGKILL:
        return f"was killed by SIGKILL, which the system sends when memory runs out. {remedy}"
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    if code > 0:
        return f"exited with code {code}; its traceback is printed above"
    return "exited with code 0"
