"""Scan inputs in worker processes."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from bert_jax.corpus.process_pool import process_pool
from bert_jax.corpus.scans import ScanTask, read_scan, scan_input


def scan_missing(tasks: Iterable[ScanTask], work: Path, num_workers: int) -> None:
    """Scan the inputs that have no scan yet, in the given order.

    A single worker runs in this process. Whether an input has a scan is checked just before its
    turn, since other machines may scan inputs at the same time.

    Raises:
      ValueError: an input cannot be used.
      OSError: an input cannot be read, a scan cannot be written, or a worker died.
    """
    if num_workers == 1:
        for task in tasks:
            if read_scan(task, work) is None:
                scan_input(task, work)
        return
    running: dict[Future[None], str] = {}
    with process_pool(num_workers) as pool:
        for task in tasks:
            if len(running) == num_workers:
                _collect(running)
            if read_scan(task, work) is None:
                running[pool.submit(scan_input, task, work)] = task.path
        while running:
            _collect(running)


def _collect(running: dict[Future[None], str]) -> None:
    """Wait for at least one scan, and raise its error if it failed."""
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        path = running.pop(future)
        try:
            future.result()
        except BrokenProcessPool:
            raise OSError(f"a worker died while reading {path} or another file") from None
