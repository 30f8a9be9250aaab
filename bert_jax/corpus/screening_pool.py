"""Screen blocks of documents in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool

from bert_jax.corpus.process_pool import process_pool
from bert_jax.corpus.screened_blocks import BlockScreener, DocumentBlock

_WAITING_BLOCKS = 2  # For each worker, this many blocks are read ahead.


def screen_blocks(
    blocks: Iterable[DocumentBlock],
    screener: BlockScreener,
    num_workers: int,
    progress: Callable[[], None],
    screened: Callable[[int], None] = lambda number: None,
) -> list[int]:
    """Screen the blocks that have no result yet. If there is one worker, it runs in this process.

    Args:
      blocks: the blocks. Each block is checked for a result just before it is screened.
      screener: the settings.
      num_workers: the number of worker processes.
      progress: called after every block.
      screened: called with the number of each block whose result was written.

    Returns:
      The number of documents in each block.

    Raises:
      OSError: a result cannot be written, or a worker died.
    """
    sizes: list[int] = []
    waiting: deque[tuple[int, Future[None]]] = deque()

    def collect() -> None:
        number, future = waiting.popleft()
        future.result()
        screened(number)

    try:
        with process_pool(num_workers, _initialize, screener) as pool:
            for block in blocks:
                sizes.append(len(block.texts))
                if screener.has(block.number, block.digest):
                    pass
                elif num_workers == 1:
                    screener.screen(block)
                    screened(block.number)
                else:
                    waiting.append((block.number, pool.submit(_screen, block)))
                    if len(waiting) > _WAITING_BLOCKS * num_workers:
                        collect()
                progress()
            while waiting:
                collect()
    except BrokenProcessPool:
        raise OSError(
            "a worker that screened documents died, perhaps because memory ran out. Use fewer "
            "workers"
        ) from None
    return sizes


_screener: BlockScreener | None = None  # set in worker processes


def _initialize(screener: BlockScreener) -> None:
    global _screener
    _screener = screener


def _screen(block: DocumentBlock) -> None:
    assert _screener is not None, "the worker is not initialized"
    _screener.screen(block)
