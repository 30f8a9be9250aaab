"""Read runs and models in buckets through local directories.

For a run in a bucket, the local directory contains copies of its small files, and checkpoints are
fetched when they are loaded. The directory reflects the state of the run at the time when the
directory was made.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from pathlib import Path

from bert_jax.local_paths import COPIES
from bert_jax.runs.bucket_layout import is_step, read_layout
from bert_jax.runs.staging import copy_run
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import StorageError
from bert_jax.storage.lease import LEASE_SECONDS
from bert_jax.storage.urls import ObjectUrl, parse_url

_views: dict[ObjectUrl, Path] = {}
_leases: dict[Path, float] = {}


def local_run(location: str | os.PathLike[str]) -> Path:
    """Return a work directory's path or, for a URL, the path of a local directory with its files.

    Every call with the same URL returns the same directory, which exists until the process ends.

    Args:
      location: a work directory, its checkpoints directory, or a single checkpoint.

    Raises:
      ValueError: the URL does not contain a work directory.
      StorageError: the bucket cannot be read.
    """
    url = parse_url(location)
    if url is None:
        return Path(location)
    root = _root_of(url)
    if root not in _views:
        _views[root] = _view_of(root)
        COPIES[str(_views[root])] = str(root)
    return _views[root] / root.relative(url) if url != root else _views[root]


def refresh(directory: Path) -> None:
    """Update a directory that `local_run` returned for a URL; do nothing for any other directory.

    Raises:
      StorageError: the bucket cannot be read.
    """
    for url, view in _views.items():
        if view == directory:
            _copy(url, view)


def is_view(directory: Path) -> bool:
    """Return whether a work directory is a copy of one in a bucket."""
    return directory in _views.values()


def is_leased(directory: Path) -> bool:
    """Return whether a process had a run's lease when the directory was made or updated.

    This assumes that the store's clock and this machine's are less than a minute apart.
    """
    return time.time() - _leases.get(directory, 0.0) < LEASE_SECONDS


def _root_of(url: ObjectUrl) -> ObjectUrl:
    """Return the URL of the work directory that contains a checkpoint, if `url` is one."""
    if is_step(url.name) and url.parent.name == CHECKPOINTS_NAME:
        return url.parent.parent
    return url.parent if url.name == CHECKPOINTS_NAME else url


def _view_of(url: ObjectUrl) -> Path:
    parent = Path(tempfile.mkdtemp(prefix="bert_jax-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    try:
        _copy(url, parent / url.name)
    except StorageError as error:
        raise ValueError(f"{url}: {error.explanation}.") from error
    return parent / url.name


def _copy(url: ObjectUrl, directory: Path) -> None:
    layout = read_layout(url)
    # Nothing else is copied, because it may be large.
    if layout.is_run() or layout.lease is not None:
        copy_run(layout, directory, shared=True)
    _leases.pop(directory, None)
    if layout.lease is not None:
        _leases[directory] = layout.lease.modified
