"""Scan inputs in worker processes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool

from bert_jax.corpus.process_pool import process_pool
from bert_jax.corpus.scans import Scan, ScanTask, read_scan, scan_files, scan_input
from bert_jax.corpus.shared_files import SharedFiles


def scan_missing(tasks: Iterable[ScanTask], files: SharedFiles, num_workers: int) -> None:
    """Scan the inputs that have no scan yet, in the given order.

    If there is a single worker, it runs in this process. Since other machines may scan inputs at
    the same time, each input is checked for a scan just before it is read.

    Raises:
      ValueError: an input cannot be used.
      OSError: an input cannot be read, a scan cannot be written, or a worker died.
    """
    work = files.work
    if num_workers == 1:
        for task in tasks:
            if fetched_scan(task, files) is None:
                scan_input(task, work)
                files.share(*scan_files(task.number))
        return
    running: dict[Future[None], ScanTask] = {}
    with process_pool(num_workers) as pool:
        for task in tasks:
            if len(running) == num_workers:
                _collect(running, files)
            if fetched_scan(task, files) is None:
                running[pool.submit(scan_input, task, work)] = task
        while running:
            _collect(running, files)


def fetched_scan(task: ScanTask, files: SharedFiles) -> Scan | None:
    """Return the scan of an input if this or another machine has made it."""
    scan = read_scan(task, files.work)
    if scan is None:
        files.fetch(*scan_files(task.number))
        scan = read_scan(task, files.work)
    return scan


def _collect(running: dict[Future[None], ScanTask], files: SharedFiles) -> None:
    """Wait for at least one scan. Share it with other machines, or raise its error if it failed."""
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        task = running.pop(future)
        try:
            future.result()
        except BrokenProcessPool:
            raise OSError(f"a worker died while reading {task.path} or another file") from None
        files.share(*scan_files(task.number))
