"""Run worker processes for the duration of a `with` block."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any

from bert_jax.processes import end_with_parent


@contextmanager
def process_pool(
    num_workers: int, initialize: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Return a pool of processes, which are started when there is work for them.

    The processes are killed when the `with` block ends, which is safe if they rename files only
    after completing them. They also end if this process is killed.

    Args:
      num_workers: the number of processes.
      initialize: a function that each process calls first; None for no function.
      arguments: the arguments of `initialize`, which are pickled.
    """
    pool = ProcessPoolExecutor(num_workers, get_context("spawn"), _begin, (initialize, *arguments))
    try:
        yield pool
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown(cancel_futures=True)


def _begin(initialize: Callable[..., None] | None, *arguments: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent handles Ctrl-C.
    end_with_parent()
    if initialize is not None:
        initialize(*arguments)
