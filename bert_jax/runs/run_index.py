"""Record the valid checkpoints of a run in a bucket, in one object that is replaced atomically.

A process that stalls for longer than its lease lasts may still write after another process has
taken over. These late writes must not change the run, so every process does the following:

- Before its first write, it increases the epoch in the index. It always replaces exactly the
  version of the index that it last wrote or read, so an earlier process can no longer replace the
  index.
- It writes the files of a checkpoint to a directory whose name contains its epoch, so no two
  processes write to the same directory. Only checkpoints in the index are used. A step is added
  to the index after all files of its checkpoint have been written, and removed from the index
  before these files are removed.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from bert_jax.json_files import parse_json_object
from bert_jax.storage.errors import ConflictError, MissingObjectError
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import read_versioned, write_bytes
from bert_jax.storage.store import ABSENT
from bert_jax.storage.urls import ObjectUrl

INDEX_NAME = "checkpoints.json"
RESTORE = "Restore it from a copy of the run, or start a new run at another URL"
# An earlier process can replace the index only once more, so one retry is enough.
_TRIES = 5


@dataclass(frozen=True)
class Index:
    """The content of an index.

    Attributes:
      epoch: the number of processes that have written to the run so far.
      revision: the number of times that the index has been written.
      owner: identifies the process that wrote the index, so that no two processes write the same
        content.
      checkpoints: a dict from step to the name of a directory in `checkpoints`.
      version: the version of the object, or `ABSENT` if there is none.
    """

    epoch: int = 0
    revision: int = 0
    owner: str = ""
    checkpoints: Mapping[int, str] = field(default_factory=dict)
    version: str = ABSENT


def read_index(url: ObjectUrl) -> Index:
    """Read the index of the run at a URL.

    Raises:
      ValueError: the object is not an index.
      StorageError: the object cannot be read.
    """
    try:
        data, info = read_versioned(url / INDEX_NAME)
    except MissingObjectError:
        return Index()
    content = parse_json_object(data, info.url, RESTORE)
    try:
        return Index(
            int(content["epoch"]),
            int(content["revision"]),
            str(content["owner"]),
            {int(step): str(name) for step, name in content["checkpoints"].items()},
            info.version,
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{info.url}: this is not the index of a run. {RESTORE}.") from error


class RunIndex:
    """The index of a run to which this process writes."""

    def __init__(self, url: ObjectUrl, lease: Lease):
        """Create the object without reading the index.

        Args:
          url: the URL of the run.
          lease: the lease on the run.
        """
        self._url, self._lease = url, lease
        self._index = Index()
        self._owner = uuid.uuid4().hex
        self._num_directories = 0
        self._claimed = False

    @property
    def epoch(self) -> int:
        """The epoch of this process; later processes have larger epochs."""
        assert self._claimed
        return self._index.epoch

    @property
    def checkpoints(self) -> Mapping[int, str]:
        """See `Index`."""
        return self._index.checkpoints

    def open(self, checkpoints: Mapping[int, str]) -> None:
        """Read the index and, if another process may still replace it, claim it.

        Args:
          checkpoints: the checkpoints of a run without an index, which was copied to the bucket.

        Raises:
          LeaseLostError: another process has taken over.
          StorageError: the index cannot be read or written.
        """
        for tried in range(1, _TRIES + 1):
            self._index = read_index(self._url)
            if self._index.version == ABSENT:
                self._index = dataclasses.replace(self._index, checkpoints=dict(checkpoints))
                if not self._lease.took_over:
                    return  # nothing is written to the bucket until the run has been accepted
            try:
                return self._claim()
            except ConflictError:  # the last write of an earlier process has just arrived
                self._lease.confirm()
                if tried == _TRIES:
                    self._lease.lose()

    def _claim(self) -> None:
        self._write(self._index.checkpoints, self._index.epoch + 1)
        self._claimed = True

    def claim(self) -> None:
        """Claim the index unless it has been claimed; call this before any other write.

        Raises:
          LeaseLostError: another process has taken over.
          StorageError: the index cannot be written.
        """
        if not self._claimed:
            try:
                self._claim()
            except ConflictError:
                self._lease.lose()

    def new_directory(self, step: int) -> str:
        """Return the name of a directory for a checkpoint; no name is returned twice."""
        self._num_directories += 1
        return f"{step}.{self.epoch}.{self._num_directories}"

    def add(self, step: int, directory: str) -> None:
        """Add a checkpoint whose files are complete.

        Raises:
          LeaseLostError: another process has taken over.
          StorageError: the index cannot be written.
        """
        self._replace({**self.checkpoints, step: directory})

    def remove(self, steps: Collection[int]) -> None:
        """Remove checkpoints, before their files are removed; see `add`."""
        self._replace({step: name for step, name in self.checkpoints.items() if step not in steps})

    def _replace(self, checkpoints: Mapping[int, str]) -> None:
        assert self._claimed
        try:
            self._write(checkpoints, self._index.epoch)
        except ConflictError:
            self._lease.lose()

    def _write(self, checkpoints: Mapping[int, str], epoch: int) -> None:
        content = {
            "epoch": epoch,
            "revision": self._index.revision + 1,
            "owner": self._owner,
            "checkpoints": {str(step): name for step, name in sorted(checkpoints.items())},
        }
        version = write_bytes(
            self._url / INDEX_NAME,
            json.dumps(content, indent=1) + "\n",
            self._index.version,
            check=self._lease.check,
        )
        self._index = Index(epoch, self._index.revision + 1, self._owner, checkpoints, version)
