"""Determine the memory this process may use, and check that worker processes fit into it."""

from __future__ import annotations

import os
import resource
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
