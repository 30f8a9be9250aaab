"""Large buffers on huge pages, where the kernel gives them only to those who ask."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb=1"
# Set by the first start: a system that drops GLIBC_TUNABLES must not start us again for ever.
STARTED_AGAIN = "BERT_JAX_STARTED_AGAIN"


def start_again_on_huge_pages(setting: Path = SETTING) -> None:
    """Replaces this process by one whose malloc asks for huge pages; returns where that is moot.

    A train step on a CPU allocates its buffers anew: 75,000 page faults a step of BERT-tiny at
    32 x 128 tokens, 500 with huge pages. glibc reads the tunable when a process starts, hence the
    new start, under the same process id. Moot: on a kernel that never gives huge pages, or always;
    where GLIBC_TUNABLES is set already, if only to nothing; and where this process is not the
    command itself but a program that calls it, or one read from standard input.
    """
    try:
        asked_for = "[madvise]" in setting.read_text()
    except OSError:  # not Linux, or a sandbox without /sys
        return
    decided = "GLIBC_TUNABLES" in os.environ or STARTED_AGAIN in os.environ
    if not asked_for or decided or not _is_the_command():
        return
    sys.stdout.flush()
    environment = {**os.environ, "GLIBC_TUNABLES": TUNABLE, STARTED_AGAIN: "1"}
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError as error:  # a sandbox that forbids it: slower, and as right
        logging.getLogger(__name__).warning("no huge pages, steps on a CPU are slower: %s", error)


def _is_the_command() -> bool:
    """Whether the words Python was started with would bring us here again."""
    words = sys.argv[1:]
    count = len(sys.orig_argv) - len(words)
    before, after = sys.orig_argv[:count], sys.orig_argv[count:]
    return bool(sys.executable) and after == words and "-" not in before and len(before) > 1
