"""The memory that this process may use, and a check that worker processes fit in it."""

from __future__ import annotations

import os
import resource
from pathlib import Path, PurePosixPath

_CGROUPS = Path("/sys/fs/cgroup")
# Memory that a worker process shares with no other, measured before it has read anything: 17 MiB of
# a loader's worker, 21 MiB of one that prepares a corpus (Linux, 2026-11).
WORKER_BYTES = 16 << 20


def memory_bytes(membership: Path = Path("/proc/self/cgroup"), cgroups: Path = _CGROUPS) -> int:
    """Return the machine's memory, or less if a control group or `ulimit -v` sets a lower limit.

    Args:
      membership: lines "number:controllers:path", no controllers in version 2 (Linux, cgroups(7)).
      cgroups: where their directories are; a group's limit holds for all groups below it.
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
    """Raise ValueError if so many worker processes cannot fit in memory.

    key: the option or config key that sets their number, for the message.
    """
    needed, memory = workers * WORKER_BYTES, memory_bytes()
    if needed > memory:
        raise ValueError(
            f"{key}={workers}: that many worker processes take at least {format_bytes(needed)}, "
            f"and this machine has {format_bytes(memory)}. Use at most {memory // WORKER_BYTES}, "
            "or better one for each core"
        )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not Linux, or no limit on this level
        return ""
