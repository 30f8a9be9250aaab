"""Let the processes that prepare the parts of a corpus write to the same URL.

Each part holds its own lease, OUTPUT/.work/part-I-of-N.lease, so that the same part cannot run
twice at the same time. There is another lease for preparations that are not divided into parts.
Each process takes its own lease first, and then waits for leases of the other kind. If two
processes of different kinds start together, at least one of them therefore notices the other.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from bert_jax.corpus.bucket_workspace import (
    LEASE,
    BucketShards,
    check_empty,
    local_work,
    part_leases,
)
from bert_jax.corpus.manifest import MANIFEST
from bert_jax.corpus.part_workspace import other_plan
from bert_jax.corpus.plans import (
    IGNORED_IF_UNFINISHED,
    finished_meanwhile,
    plan_differences,
    read_plan,
)
from bert_jax.corpus.shared_files import BucketFiles
from bert_jax.corpus.workspace import PLAN, WORK
from bert_jax.storage.errors import ConflictError
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease, wait_until_free
from bert_jax.storage.objects import find, list_directory, write_bytes
from bert_jax.storage.store import ABSENT
from bert_jax.storage.urls import ObjectUrl


class BucketPartWorkspace:
    """A context manager for one part of an unfinished preparation in a bucket; see `Workspace`.

    Attributes:
      work: the directory for unfinished work on this machine.
      files: the files that this part exchanges with other parts.
      keeper: the object that keeps finished shards.
    """

    work: Path
    files: BucketFiles
    keeper: BucketShards

    def __init__(self, output: ObjectUrl, plan: dict[str, Any], index: int, count: int):
        """Create the workspace. Nothing is read or written until its `with` block begins.

        Args:
          output: the URL of the corpus.
          plan: everything that determines the corpus; see `Workspace`.
          index: the index of the part, from 0.
          count: the number of parts.
        """
        self._output, self._plan = output, plan
        self._remote = output / WORK
        self._name = f"part-{index}-of-{count}"
        self._setting = f"output={output}"
        holder = f"run of part {index}/{count}"
        self._lease = Lease(self._remote / f"{self._name}.lease", holder, self._setting)
        self._stack = ExitStack()

    def __enter__(self) -> BucketPartWorkspace:
        """Take the part's lease, and check the contents of the bucket.

        Raises:
          ValueError: the bucket contains something else below the URL or a preparation with a
            different plan, this part is already running, or a merge or a preparation that is not
            divided into parts is running.
        """
        check_empty(self._output)
        with ExitStack() as stack:
            stack.enter_context(self._lease)
            wait_until_free(self._remote / LEASE, "preparation or merge", self._setting)
            if find(self._output / MANIFEST) is not None:  # finished while waiting
                raise ValueError(finished_meanwhile(self._output))
            self._check_plan()
            write_bytes(self._remote / f"{self._name}.lock", "")  # see `numbers_of_parts`
            self.work = stack.enter_context(local_work(self._output, self._name))
            writer = ExclusiveWriter(self._lease)
            self.files = BucketFiles(self.work, self._remote, writer)
            self.keeper = BucketShards(self._output, writer)
            stack.callback(self.keeper.close)
            self._stack = stack.pop_all()
        return self

    def _check_plan(self) -> None:
        """Write the plan, or compare it with the plan that another part has written."""
        url, content = self._remote / PLAN, json.dumps(self._plan, indent=1)
        while True:
            info = find(url)
            if info is not None:
                existing = read_plan(url)
                differences = plan_differences(existing, self._plan, ignored=())
                if not differences:
                    return
                # A part may replace an outdated plan only while no other part is running.
                for lease in part_leases(self._output):
                    if lease.name != f"{self._name}.lease":
                        wait_until_free(lease, "part with a different plan", self._setting)
                lasting = plan_differences(existing, self._plan, ignored=IGNORED_IF_UNFINISHED)
                shards = list_directory(self._output)[0]
                if lasting and any(each.url.suffix == ".arrayrecord" for each in shards):
                    raise ValueError(other_plan(self._output, differences))
            try:
                write_bytes(url, content, ABSENT if info is None else info.version)
                return
            except ConflictError:
                continue  # Another part wrote the plan first.

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, traceback)
