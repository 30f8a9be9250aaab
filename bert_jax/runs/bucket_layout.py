"""Describe how a run is stored in a bucket, and list its files in the bucket.

Files have the same names as in a work directory, with three exceptions. A checkpoint has an
additional file, `COMMIT_NAME`, which is written after all its other files and removed before them.
Checkpoints without this file are ignored, unless the whole directory was copied from a disk. A log
such as metrics.jsonl is split into parts in a directory such as metrics.parts (see `bucket_logs`).
The lease in `LEASE_NAME` names the process that writes to the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from bert_jax.goodput.entries import GOODPUT_NAME
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, MODEL_NAME
from bert_jax.storage.objects import find, list_objects
from bert_jax.storage.store import ObjectInfo
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.checkpoint_files import ASIDE_NAME
from bert_jax.training.downstream_log import DOWNSTREAM_LOG_NAME
from bert_jax.training.heartbeat import HEARTBEAT_NAME
from bert_jax.training.metrics_log import LOG_NAME

LEASE_NAME = ".lease"
COMMIT_NAME = "committed.json"
LOGS = (LOG_NAME, GOODPUT_NAME, DOWNSTREAM_LOG_NAME)
# Entries of a run that was killed before it wrote its model description or a checkpoint.
_OF_UNSTARTED_RUNS = {LEASE_NAME, HEARTBEAT_NAME, CHECKPOINTS_NAME, "tensorboard", "profile"}


def parts_name(log: str) -> str:
    """Return the name of the directory with the parts of a log.

    >>> parts_name("metrics.jsonl")
    'metrics.parts'
    """
    return f"{PurePosixPath(log).stem}.parts"


@dataclass
class Layout:
    """The objects of a run in a bucket.

    Attributes:
      url: the run's URL.
      files: a dict from relative name to object, for all files that do not belong to any of the
        attributes below.
      logs: a dict from a log's name to its parts.
      checkpoints: the files of complete checkpoints, keyed by step. The files of one checkpoint are
        a dict from name to object, without `COMMIT_NAME`.
      unmarked: the steps in `checkpoints` that have no `COMMIT_NAME`, because the directory was
        copied from a disk.
      unfinished: the objects of checkpoints that are incomplete or being removed.
      lease: the lease, or None if no process has one.
    """

    url: ObjectUrl
    files: dict[str, ObjectInfo] = field(default_factory=dict)
    logs: dict[str, list[ObjectInfo]] = field(default_factory=dict)
    checkpoints: dict[int, Mapping[str, ObjectInfo]] = field(default_factory=dict)
    unmarked: set[int] = field(default_factory=set)
    unfinished: list[ObjectInfo] = field(default_factory=list)
    lease: ObjectInfo | None = None

    def is_run(self) -> bool:
        """Return whether a run or an import has written a model or a checkpoint."""
        return MODEL_NAME in self.files or bool(self.checkpoints)


def read_layout(url: ObjectUrl) -> Layout:
    """List the objects of a run.

    Raises:
      StorageError: the bucket does not exist, or the store denies access or does not respond.
    """
    layout = Layout(url)
    logs = {parts_name(log): log for log in LOGS}
    steps: dict[int, dict[str, ObjectInfo]] = {}
    for info in list_objects(url):
        name = url.relative(info.url)
        first, _, rest = name.partition("/")
        step, _, file = rest.partition("/")
        if name == LEASE_NAME:
            layout.lease = info
        elif first in logs:
            layout.logs.setdefault(logs[first], []).append(info)
        elif first == CHECKPOINTS_NAME and file and is_step(step):
            steps.setdefault(int(step), {})[file] = info
        elif first != ASIDE_NAME or not file:  # Checkpoints that were set aside stay in the bucket.
            layout.files[name] = info
    marked = {step for step, files in steps.items() if files.pop(COMMIT_NAME, None) is not None}
    was_copied = MODEL_NAME in layout.files and not layout.logs and not marked
    for number, objects in steps.items():
        if number in marked or was_copied:
            layout.checkpoints[number] = objects
        else:
            layout.unfinished += objects.values()
    layout.unmarked = layout.checkpoints.keys() - marked
    return layout


def is_step(name: str) -> bool:
    """Return whether a directory's name is a step number."""
    return name.isascii() and name.isdecimal() and str(int(name)) == name


def check_unclaimed(layout: Layout, setting: str) -> None:
    """Reject a URL at which a run would mix its files with other objects.

    Args:
      layout: the objects below the URL.
      setting: the config key and its value, for the message.

    Raises:
      ValueError: there are objects that no run wrote, or the URL itself is an object.
    """
    if find(layout.url) is not None:
        raise ValueError(f"{setting}: this is an object. Choose another URL.")
    if layout.is_run():
        return
    for name in layout.files:
        if name.partition("/")[0] not in _OF_UNSTARTED_RUNS:
            raise ValueError(
                f"{setting}: there are objects that no run wrote, such as {name}. Choose another "
                "URL."
            )
