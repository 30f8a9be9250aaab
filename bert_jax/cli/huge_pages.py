"""Large buffers on huge pages, where the kernel gives them only to those who ask."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb=1"


def start_again_on_huge_pages(setting: Path = SETTING) -> None:
    """Replaces this process by one whose malloc asks for huge pages; returns where that is moot.

    A train step on a CPU allocates its buffers anew: 75,000 page faults a step of BERT-tiny at
    32 x 128 tokens, 500 with huge pages. glibc reads the tunable when a process starts, hence the
    new start, under the same process id. Moot: on a kernel that never gives huge pages, or always,
    and where GLIBC_TUNABLES is set already, be it by the user or by this function.
    """
    try:
        asked_for = "[madvise]" in setting.read_text()
    except OSError:  # not Linux, or a sandbox without /sys
        return
    if asked_for and "GLIBC_TUNABLES" not in os.environ:
        sys.stdout.flush()
        environment = {**os.environ, "GLIBC_TUNABLES": TUNABLE}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
