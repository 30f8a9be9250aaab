"""Describe how a run is stored in a bucket, and list its files in the bucket.

Files have the same names as in a work directory, with two exceptions:

- The files of a checkpoint are in a directory that is named after its step and the process that
  wrote it. Only the checkpoints listed in `INDEX_NAME` count (see `run_index`), unless the whole
  run was copied from a disk.
- A log such as metrics.jsonl is split into parts in a directory such as metrics.parts (see
  `bucket_logs`).

In addition, the lease in `LEASE_NAME` names the process that writes to the run. The scores of
fine-tuned checkpoints have their own lease and index, since another process may write them (see
`bucket_scores`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from bert_jax.corpus.workspace import SWEEP_NAME
from bert_jax.goodput.entries import GOODPUT_NAME
from bert_jax.runs.run_index import INDEX_NAME, RESTORE, read_index
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, MODEL_NAME
from bert_jax.storage.objects import find, list_objects
from bert_jax.storage.store import ABSENT, ObjectInfo
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training.checkpoint_files import ASIDE_NAME
from bert_jax.training.downstream_log import DOWNSTREAM_LOG_NAME
from bert_jax.training.heartbeat import HEARTBEAT_NAME
from bert_jax.training.metrics_log import LOG_NAME

LEASE_NAME = ".lease"
LOGS = (LOG_NAME, GOODPUT_NAME, DOWNSTREAM_LOG_NAME)
_THREADS = 8
RUNS_NAME = "runs"  # the directory for the runs of a sweep
DOWNSTREAM_NAME = "downstream"  # the directory for the tasks that checkpoints are fine-tuned on
# Entries of a run that was killed before it wrote its model description or a checkpoint.
_OF_UNSTARTED_RUNS = {LEASE_NAME, HEARTBEAT_NAME, CHECKPOINTS_NAME, "tensorboard", "profile"}
_OF_SCORES = {f"{DOWNSTREAM_NAME}/{name}" for name in (LEASE_NAME, INDEX_NAME)}
_DIRECTORY = re.compile(r"(\d+)\.\d+\.\d+")  # see `RunIndex.new_directory`


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
        a dict from name to object.
      directories: the URL of each complete checkpoint's directory, keyed by step.
      unfinished: the objects of checkpoints that are incomplete or being removed.
      lease: the lease, or None if no process has one.
    """

    url: ObjectUrl
    files: dict[str, ObjectInfo] = field(default_factory=dict)
    logs: dict[str, list[ObjectInfo]] = field(default_factory=dict)
    checkpoints: dict[int, Mapping[str, ObjectInfo]] = field(default_factory=dict)
    directories: dict[int, ObjectUrl] = field(default_factory=dict)
    unfinished: list[ObjectInfo] = field(default_factory=list)
    lease: ObjectInfo | None = None

    def is_run(self) -> bool:
        """Return whether a run or an import has written a model or a checkpoint."""
        return MODEL_NAME in self.files or bool(self.checkpoints)


def read_layout(url: ObjectUrl) -> Layout:
    """List the objects of a run.

    Raises:
      ValueError: the index of the run is missing or is not an index.
      StorageError: the bucket does not exist, or the store denies access or does not respond.
    """
    layout = Layout(url)
    logs = {parts_name(log): log for log in LOGS}
    directories: dict[str, dict[str, ObjectInfo]] = {}
    before = read_index(url)
    for info in list_objects(url):
        name = url.relative(info.url)
        first, _, rest = name.partition("/")
        directory, _, file = rest.partition("/")
        if name == LEASE_NAME:
            layout.lease = info
        elif name == INDEX_NAME or name in _OF_SCORES:
            pass
        elif first in logs:
            layout.logs.setdefault(logs[first], []).append(info)
        elif first == CHECKPOINTS_NAME and file and _is_checkpoint(directory):
            directories.setdefault(directory, {})[file] = info
        elif first != ASIDE_NAME or not file:  # Checkpoints that were set aside stay in the bucket.
            layout.files[name] = info
    index = read_index(url)
    if index.version != ABSENT:
        # A checkpoint that was added or removed while the objects were listed may be incomplete.
        complete = dict(before.checkpoints.items() & index.checkpoints.items())
    elif MODEL_NAME in layout.files:  # the directory was copied from a disk
        complete = {int(name): name for name in directories if is_step(name)}
    else:
        complete = {}
    for step, name in sorted(complete.items()):
        layout.checkpoints[step] = directories.pop(name, {})
        layout.directories[step] = url / CHECKPOINTS_NAME / name
    if index.version == ABSENT:
        if any(_DIRECTORY.fullmatch(name) for name in directories):
            raise ValueError(f"{url / INDEX_NAME}: this object is missing. {RESTORE}.")
        return layout
    layout.unfinished = [
        info
        for name, files in directories.items()
        if name not in index.checkpoints.values()
        for info in files.values()
    ]
    return layout


def _is_checkpoint(directory: str) -> bool:
    return is_step(directory) or _DIRECTORY.fullmatch(directory) is not None


def is_score(name: str) -> bool:
    """Return whether a file of a run, given its relative name, belongs to the scores of its tasks.

    >>> is_score("downstream/sst2/output.txt"), is_score("metrics.jsonl")
    (True, False)
    """
    directories = (f"{DOWNSTREAM_NAME}/", f"tensorboard/{DOWNSTREAM_NAME}/")
    return name == DOWNSTREAM_LOG_NAME or name.startswith(directories)


def split_sweep(layout: Layout) -> tuple[dict[str, ObjectInfo], dict[str, Layout]] | None:
    """Return the objects of a sweep in a bucket, or None if it is not a sweep.

    Args:
      layout: the objects below the URL.

    Returns:
      The sweep's own files, keyed by their names, and the layouts of its runs, keyed by the names
      of their directories.

    Raises:
      StorageError: see `read_layout`.
    """
    if SWEEP_NAME not in layout.files:
        return None
    files = {name: info for name, info in layout.files.items() if "/" not in name}
    parts = [name.split("/") for name in layout.files]
    names = sorted({part[1] for part in parts if part[0] == RUNS_NAME and len(part) > 2})
    with ThreadPoolExecutor(_THREADS) as pool:
        runs = pool.map(read_layout, [layout.url / RUNS_NAME / name for name in names])
        return files, dict(zip(names, runs, strict=True))


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
