"""Documents to learn a vocabulary from: whole ones, spread evenly over a corpus."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

logger = logging.getLogger(__name__)

MAX_SAMPLE_BYTES = 1 << 30  # three to five minutes on two cores
# Ten times the largest published vocabularies; the libraries allocate memory for all entries at
# once.
MAX_VOCAB_SIZE = 10_000_000
MAX_COUNT = 2**63 - 1  # the libraries' integer type


def check_sizes(**sizes: tuple[int, int, int]) -> None:
    """Raise ValueError if a size's value, given as (value, least, most), is out of range."""
    for name, (value, least, most) in sizes.items():
        if value < least:
            raise ValueError(f"{name} is {value}, expected at least {least}")
        if value > most:
            raise ValueError(f"{name} is {value}, expected at most {most:,}")


def check_repeatable(documents: Iterable[str]) -> None:
    """Raises ValueError for an iterator, which can be gone through once where twice is needed."""
    if iter(documents) is documents:
        raise ValueError(
            "documents is an iterator, which can be gone through only once; expected a list or an "
            "object that begins anew each time it is iterated over"
        )


def warn_if_smaller(found: int, wanted: int) -> None:
    """Logs that a text has not given a vocabulary as many entries as were asked for."""
    if found < wanted:
        logger.warning(
            "the text has enough repeated pieces for a vocabulary of %d, not %d", found, wanted
        )


def even_sample(documents: Iterable[str], num_bytes: int, max_bytes: int) -> Iterator[str]:
    """Takes a document while the share taken of the budget is within the share seen of the text.

    num_bytes: of all documents together. max_bytes: of those taken, both as UTF-8.

    Raises:
      ValueError: there is text, but no document of it fits into `max_bytes`.
    """
    seen = taken = smallest = 0
    for text in documents:
        size = utf8_size(text)
        seen += size
        smallest = min(smallest or size, size)
        if (taken + size) * num_bytes <= max_bytes * seen:
            taken += size
            yield text
    if seen and not taken:
        raise ValueError(
            f"the smallest document has {smallest:,} bytes, and a vocabulary is learned from whole "
            f"documents of at most {max_bytes:,} bytes together: give more (--max-bytes), or "
            "separate the documents of plain text by blank lines"
        )


def utf8_size(text: str) -> int:
    """Bytes of a text as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))
