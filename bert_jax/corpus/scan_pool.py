"""Scan inputs in worker processes."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path

from bert_jax.corpus.scans import ScanTask, read_scan, scan_input
from bert_jax.processes import end_with_parent


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
    pool: ProcessPoolExecutor | None = None
    running: dict[Future[None], str] = {}
    try:
        for task in tasks:
            if len(running) == num_workers:
                _collect(running)
            if read_scan(task, work) is not None:
                continue
            if pool is None:
                pool = ProcessPoolExecutor(num_workers, get_context("spawn"), _begin)
            running[pool.submit(scan_input, task, work)] = task.path
        while running:
            _collect(running)
    finally:
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()  # safe, since files are renamed only when they are complete
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    end_with_parent()


def _collect(running: dict[Future[None], str]) -> None:
    """Wait for at least one scan, and raise its error if it failed."""
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        path = running.pop(future)
        try:
            future.result()
        except BrokenProcessPool:
            raise OSError(f"a worker died while reading {path} or another file") from None
