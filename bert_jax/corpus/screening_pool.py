"""Screen blocks of documents in worker processes."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context

from bert_jax.corpus.screened_blocks import BlockScreener, DocumentBlock
from bert_jax.processes import end_with_parent

_WAITING_BLOCKS = 2  # blocks per worker that are read ahead


def screen_blocks(
    blocks: Iterable[DocumentBlock],
    screener: BlockScreener,
    num_workers: int,
    progress: Callable[[], None],
) -> list[int]:
    """Screen the blocks that have no result yet. A single worker runs in this process.

    Args:
      blocks: the blocks. Whether a block has a result is checked when it is its turn.
      screener: the settings.
      num_workers: the number of worker processes.
      progress: called after every block.

    Returns:
      The number of documents in each block.

    Raises:
      OSError: a result cannot be written, or a worker died.
    """
    sizes: list[int] = []
    pool: ProcessPoolExecutor | None = None
    waiting: deque[Future[None]] = deque()
    try:
        for block in blocks:
            sizes.append(len(block.texts))
            if screener.has(block.number, block.digest):
                pass
            elif num_workers == 1:
                screener.screen(block)
            else:
                if pool is None:
                    pool = ProcessPoolExecutor(
                        num_workers, get_context("spawn"), _begin, (screener,)
                    )
                waiting.append(pool.submit(_screen, block))
                if len(waiting) > _WAITING_BLOCKS * num_workers:
                    waiting.popleft().result()
            progress()
        while waiting:
            waiting.popleft().result()
    except BrokenProcessPool:
        raise OSError(
            "a worker that screened documents died, perhaps because memory ran out. Use fewer "
            "workers"
        ) from None
    finally:
        if pool is not None:
            for process in list((pool._processes or {}).values()):
                process.kill()  # safe, since files are renamed only when they are complete
            pool.shutdown(cancel_futures=True)
    return sizes


_screener: BlockScreener | None = None  # set in worker processes


def _begin(screener: BlockScreener) -> None:
    global _screener
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent
    end_with_parent()
    _screener = screener


def _screen(block: DocumentBlock) -> None:
    assert _screener is not None, "the worker is not initialized"
    _screener.screen(block)
