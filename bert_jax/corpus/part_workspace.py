"""Let the processes that prepare the parts of a corpus share a directory."""

from __future__ import annotations

import fcntl
import os
import re
import time
from types import TracebackType
from typing import IO, Any

from bert_jax.corpus.plans import plan_differences, read_plan
from bert_jax.corpus.workspace import (
    LOCK,
    PLAN,
    WORK,
    Workspace,
    open_lock,
    try_lock,
)
from bert_jax.storage.locations import file_names, is_file
from bert_jax.storage.urls import Location

# A part waits at most this long for the first part to check the plan. The check takes much less
# time.
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.1


class PartWorkspace(Workspace):
    """A context manager for DIR/.work that other parts of the same preparation may share.

    A part locks its own file exclusively, which prevents it from running twice at once. It also
    shares the lock of the directory with the other parts. While any part is running, this prevents
    `prepare` and a merge from running.
    """

    def __init__(
        self, output: str | os.PathLike[str], plan: dict[str, Any], index: int, count: int
    ):
        """Open a new directory, or one with an unfinished preparation that has the same plan.

        Args:
          output: the corpus directory.
          plan: everything that determines the corpus; see `Workspace`.
          index: the index of the part, from 0.
          count: the number of parts.

        Raises:
          ValueError: the directory contains something else or a preparation with a different plan,
            this part is already running, or a merge or a preparation that is not divided into parts
            is running.
        """
        self._index, self._count = index, count
        self._part_lock: IO[str] | None = None
        self._alone = False
        try:
            super().__init__(output, plan)
        except BaseException:
            self._release()
            raise
        fcntl.flock(self._lock, fcntl.LOCK_SH)  # Other parts may start now.

    def _take_lock(self) -> IO[str]:
        self._part_lock = open_lock(self.work / f"part-{self._index}-of-{self._count}.lock")
        if not try_lock(self._part_lock, fcntl.LOCK_EX):
            raise ValueError(
                f"{self.output}: part {self._index}/{self._count} is already running. Wait until "
                "it ends, or stop it."
            )
        lock = open_lock(self.work / LOCK)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            # A part may replace an outdated plan only while no other part is running.
            self._alone = try_lock(lock, fcntl.LOCK_EX)
            if self._alone or try_lock(lock, fcntl.LOCK_SH):
                return lock
            time.sleep(_PAUSE_SECONDS)
        lock.close()
        raise ValueError(
            f"{self.output}: a merge, or a preparation that is not divided into parts, is writing "
            "to it. Wait until it ends, or stop it."
        )

    def _check_plan(self, plan: dict[str, Any]) -> None:
        if self._alone:
            super()._check_plan(plan)
        else:
            check_has_plan(self.output, plan)

    def _clean_up(self) -> None:
        if self._alone:
            super()._clean_up()

    def _release(self) -> None:
        if self._part_lock is not None:
            self._part_lock.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._release()


def check_has_plan(output: Location, plan: dict[str, Any]) -> None:
    """Check that a directory contains an unfinished preparation with this plan.

    Raises:
      ValueError: there is no unfinished preparation, or only one with a different plan.
    """
    path = output / WORK / PLAN
    if not is_file(path):
        raise ValueError(
            f"{output}: contains no parts of a corpus. Prepare them with --part, using this output "
            "directory."
        )
    if differences := plan_differences(read_plan(path), plan, ignored=()):
        raise ValueError(other_plan(output, differences))


def other_plan(output: Location, differences: str) -> str:
    """Return the error message for parts that were made with a different plan."""
    return (
        f"{output}: its parts were made with different settings: {differences}. Use the same "
        "settings and inputs for all parts, or choose another output directory."
    )


def numbers_of_parts(work: Location) -> set[int]:
    """Return how many parts each preparation in a directory had, such as {4} if all had four."""
    matches = (re.fullmatch(r"part-\d+-of-(\d+)\.lock", name) for name in file_names(work))
    return {int(match[1]) for match in matches if match is not None}
