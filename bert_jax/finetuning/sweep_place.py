"""Open the directory of a sweep for writing, on a disk or in a bucket.

A sweep in a bucket is protected by a lease. It works in a local staging directory, which contains
the small files of all runs. Each run is stored like any other run in a bucket.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bert_jax.finetuning.outcome import SCORES_NAME
from bert_jax.finetuning.sweep_directory import (
    DIVERGED_NAME,
    IDENTITY_NAME,
    has_leftovers,
    remove_model,
)
from bert_jax.local_paths import COPIES, make_directory
from bert_jax.runs.bucket_layout import LEASE_NAME, RUNS_NAME, read_layout, split_sweep
from bert_jax.runs.locations import WorkDir, open_part
from bert_jax.runs.outputs import check_output, check_output_url
from bert_jax.runs.ownership import is_locked
from bert_jax.runs.staging import copy_objects, copy_to_continue, staging_directory
from bert_jax.storage.errors import located, naming_store_errors, naming_url
from bert_jax.storage.exclusive_writes import ExclusiveWriter
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import find, list_objects
from bert_jax.storage.urls import Location, ObjectUrl, parse_location

_THREADS = 8


@dataclass
class SweepPlace:
    """The directory of a sweep that has been opened for writing.

    Attributes:
      root: the directory; its lease covers the whole sweep.
    """

    root: WorkDir

    @property
    def path(self) -> Path:
        """The local directory in which the sweep works."""
        return self.root.path

    @contextmanager
    def open_run(self, name: str) -> Iterator[WorkDir]:
        """Open the work directory of a run for writing.

        Raises:
          StorageError: the bucket cannot be read or written.
        """
        directory, url = self.path / RUNS_NAME / name, self.root.location / RUNS_NAME / name
        if self.root.lease is None or not isinstance(url, ObjectUrl):
            yield WorkDir.on_disk(make_directory(directory))
            return
        with open_part(url, directory, self.root.lease) as place:
            yield place

    def publish(self, *files: Path) -> None:
        """Copy files of the sweep to the bucket, if it is in one.

        Raises:
          StorageError: a file cannot be written.
          LeaseLostError: another process has taken over the sweep.
        """
        if self.root.lease is not None:
            writer = ExclusiveWriter(self.root.lease)
            for file in files:
                target = self.root.shown(file)
                assert isinstance(target, ObjectUrl)
                writer.upload(file, target)

    def remove_model(self, name: str) -> None:
        """Remove a run's parameters; see the function `remove_model`."""
        directory = self.path / RUNS_NAME / name
        if not has_leftovers(directory):
            return
        with self.open_run(name) as place:
            place.remove_copied_checkpoints()
            remove_model(directory)


def check_sweep_output(output: str | os.PathLike[str], name: str) -> Location:
    """Check that a sweep may write to a directory, and return its path or URL.

    Args:
      output: the directory, which need not exist, or its URL.
      name: the option or config key that specifies it.

    Raises:
      ValueError: the directory contains something else, or is inside a corpus.
      StorageError: the store does not respond.
    """
    location = parse_location(output, name)
    if not isinstance(location, ObjectUrl):
        check_output(location, name, may_be=["sweep"])
        return location
    check_output_url(location, name, may_be=["sweep"])
    if find(location / IDENTITY_NAME) is None:
        for info in list_objects(location):
            if info.url != location / LEASE_NAME:
                raise ValueError(
                    f"{located(location, name)}: there are objects that no sweep wrote, such as "
                    f"{location.relative(info.url)}. Choose another URL."
                )
    return location


@contextmanager
def open_sweep(output: str | os.PathLike[str]) -> Iterator[SweepPlace]:
    """Reserve a sweep's directory in a bucket for this process, or check a directory on disk.

    A sweep in a bucket is copied to its staging directory first, except for parameters. When the
    block ends, the lease is released, and the staging directory is removed if the sweep is
    finished. If the block raises a ValueError, its message gives the URL, not the local path.

    Raises:
      ValueError: the directory contains something else, or another process is writing the sweep.
      StorageError: the bucket cannot be read or written.
    """
    url = check_sweep_output(output, "output")
    if not isinstance(url, ObjectUrl):
        yield SweepPlace(WorkDir.on_disk(url))
        return
    setting = f"output={url}"
    with ExitStack() as closing:
        with naming_store_errors("output", url):
            lease = closing.enter_context(Lease(url / LEASE_NAME, "sweep", setting))
            check_sweep_output(url, "output")  # another process may have written here
        staging = staging_directory(url)
        COPIES[str(staging)] = str(url)
        if is_locked(staging):
            raise ValueError(f"{setting}: another sweep on this machine is using {staging}.")
        with naming_store_errors("output", url):
            _copy(url, staging, lease)
        place = SweepPlace(WorkDir(url, staging, lease=lease))
        with naming_url(staging, url):
            yield place
        if place.root.finished:
            shutil.rmtree(staging.parent, ignore_errors=True)


def _copy(url: ObjectUrl, directory: Path, lease: Lease) -> None:
    """Synchronize a directory with the sweep in a bucket, except for parameters.

    If the sweep was killed, the lease of a run that had just ended is removed, since no process
    will write to the run again.
    """
    files, runs = split_sweep(read_layout(url)) or ({}, {})
    local = make_directory(directory / RUNS_NAME)
    for path in [*directory.iterdir(), *local.iterdir()]:
        if path.parent == local and path.name not in runs:
            shutil.rmtree(path)
        elif path.parent == directory and path.is_file() and path.name not in files:
            path.unlink()
    copy_objects({directory / name: [info] for name, info in files.items()})
    with ThreadPoolExecutor(_THREADS) as pool:
        copies = [
            pool.submit(copy_to_continue, layout, local / name) for name, layout in runs.items()
        ]
        for copy in copies:
            copy.result()
    for name, layout in runs.items():
        has_ended = any((local / name / mark).is_file() for mark in (SCORES_NAME, DIVERGED_NAME))
        if layout.lease is not None and has_ended:
            lease.discard(layout.lease.url)
