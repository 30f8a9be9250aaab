"""Run commands on a disk that is too small, and repeat them after it has been enlarged."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from assets import Assets
from cases import Case, Job, Steps, problems_of, sentence_of
from commands_that_write import Writing, writing_commands
from kills import leftovers

# Disk sizes, as fractions of the size of a command's output.
_SHARES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
_ENOUGH = "size=256m"
_LONGEST_ERROR = 3  # The maximum number of lines on standard error, not counting progress lines.


def cannot_mount() -> str:
    """Return the reason why a small disk cannot be mounted, or "" if it can be."""
    if os.geteuid() != 0:
        return "mounting a tmpfs requires root"
    return ""


def disk_cases(assets: Assets, seed: int) -> Iterator[Case]:
    """Yield cases that write to disks of various sizes; yield none if disks cannot be mounted."""
    del seed  # These cases do not use randomness.
    if reason := cannot_mount():
        print(f"disks: skipped, {reason}")
        return
    for name, command in writing_commands(assets).items():
        for share in _SHARES:
            yield _case(f"{name} {share:.0%}", command, max(16384, int(share * command.size)))


def _case(name: str, command: Writing, size: int) -> Case:
    def steps(here: Path) -> Steps:
        disk = here / "disk"
        disk.mkdir()
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True
        )
        try:
            return (yield from _full(command, here, disk))
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)

    return Case("disks", name, steps)


def _full(command: Writing, here: Path, disk: Path) -> Steps:
    words = command.words(disk / "out")
    ended = yield Job(words)
    problems = []
    if ended.code:  # The command succeeds if its output happens to fit on the disk.
        problems += problems_of(ended, "refused", r"disk/")
        sentence = sentence_of(ended)
        if len(sentence.splitlines()) > 1:
            problems.append(f"{len(sentence.splitlines())} lines: {sentence[:300]}")
        if sentence and not any(word in sentence for word in ("same command", "othing w")):
            problems.append(f"does not say whether anything was written: {sentence[:300]}")
        problems += [f"leftover: {left}" for left in leftovers(here) if ".work" not in left]
        subprocess.run(["mount", "-o", f"remount,{_ENOUGH}", str(disk)], check=True)
        ended = yield Job(words)
    problems += problems_of(ended, "accepted")
    if ended.code == 0:
        undisturbed = yield Job(command.words(here / "undisturbed"))
        problems += problems_of(undisturbed, "accepted")
        both = (disk / "out", here / "undisturbed")
        found = yield Job(call=lambda: command.result(both[0]) == command.result(both[1]))
        if found.code or not found.value:
            problems.append("wrong result: differs from the undisturbed command's")
    return problems
