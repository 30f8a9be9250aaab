"""Read runs, sweeps and models in buckets through local directories.

For a run in a bucket, the local directory contains copies of its small files, and checkpoints are
fetched when they are loaded. The directory shows the run as it was when the directory was made or
last updated.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from bert_jax.local_paths import COPIES
from bert_jax.runs.bucket_layout import RUNS_NAME, Layout, is_step, read_layout, split_sweep
from bert_jax.runs.staging import RunCopy, copy_objects, is_read
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.storage.errors import StorageError
from bert_jax.storage.lease import LEASE_SECONDS
from bert_jax.storage.urls import ObjectUrl, parse_url


@dataclass
class _View:
    """A local directory that shows a run or a sweep in a bucket.

    Attributes:
      url: the URL of the run or the sweep.
      directory: the local directory.
      leases: the time at which the lease of each run was last renewed, keyed by the run's local
        directory.
    """

    url: ObjectUrl
    directory: Path
    leases: dict[Path, float] = field(default_factory=dict)
    _copies: dict[Path, RunCopy] = field(default_factory=dict)

    def update(self) -> None:
        """Copy the objects that have changed since the last update."""
        layout = read_layout(self.url)
        sweep = split_sweep(layout)
        if sweep is None:
            if layout.is_run() or layout.lease is not None:  # anything else may be large
                self._update_run(layout, self.directory)
            return
        files, runs = sweep
        copy_objects({self.directory / name: [info] for name, info in files.items()})
        for name, layout in runs.items():
            self._update_run(layout, self.directory / RUNS_NAME / name)

    def _update_run(self, layout: Layout, directory: Path) -> None:
        new = RunCopy(directory, shared=True, is_copied=is_read)
        self._copies.setdefault(directory, new).update(layout)
        self.leases.pop(directory, None)
        if layout.lease is not None:
            self.leases[directory] = layout.lease.modified


_views: dict[ObjectUrl, _View] = {}


def local_run(location: str | os.PathLike[str]) -> Path:
    """Return a work directory's path or, for a URL, the path of a local directory with its files.

    Every call with the same URL returns the same directory, which exists until the process ends.

    Args:
      location: a work directory, its checkpoints directory, or a single checkpoint; or the
        directory of a sweep.

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
        COPIES[str(_views[root].directory)] = str(root)
    directory = _views[root].directory
    return directory / root.relative(url) if url != root else directory


def refresh(directory: Path) -> None:
    """Update a directory that `local_run` returned for a URL; do nothing for any other directory.

    Raises:
      StorageError: the bucket cannot be read.
    """
    for view in _views.values():
        if view.directory == directory:
            view.update()


def is_view(directory: Path) -> bool:
    """Return whether a work directory is a copy of one in a bucket."""
    return any(
        directory == view.directory or directory.parent == view.directory / RUNS_NAME
        for view in _views.values()
    )


def is_leased(directory: Path) -> bool:
    """Return whether a process had a run's lease when the directory was made or updated.

    This assumes that the store's clock and this machine's are less than a minute apart.
    """
    renewed = max((view.leases.get(directory, 0.0) for view in _views.values()), default=0.0)
    return time.time() - renewed < LEASE_SECONDS


def _root_of(url: ObjectUrl) -> ObjectUrl:
    """Return the URL of the work directory that contains the checkpoint `url`, or else `url`."""
    if is_step(url.name) and url.parent.name == CHECKPOINTS_NAME:
        return url.parent.parent
    return url.parent if url.name == CHECKPOINTS_NAME else url


def _view_of(url: ObjectUrl) -> _View:
    parent = Path(tempfile.mkdtemp(prefix="bert_jax-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    view = _View(url, parent / url.name)
    try:
        view.update()
    except StorageError as error:
        raise ValueError(f"{url}: {error.explanation}.") from error
    return view
