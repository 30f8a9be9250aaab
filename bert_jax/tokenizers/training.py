"""Check the arguments for training any kind of vocabulary, and sample the text to train on.

Training is deterministic: the same text always gives the same vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

# Training on a sample of this size takes three to five minutes on two cores.
MAX_SAMPLE_BYTES = 1 << 30
# SentencePiece keeps the sample and all of its suffixes in memory, which takes about 20 bytes per
# byte of text.
MAX_SENTENCEPIECE_BYTES = 1 << 27
# Ten times the size of the largest published vocabularies. The libraries allocate memory for all
# tokens up front.
MAX_VOCAB_SIZE = 10_000_000
# The largest value of the libraries' integer type.
MAX_COUNT = 2**63 - 1
NO_TEXT = "documents: no text to train a vocabulary on."


def check_sizes(**sizes: tuple[int, int, int]) -> None:
    """Raise ValueError if a size, given as (value, minimum, maximum), is out of range."""
    for name, (value, minimum, maximum) in sizes.items():
        if value < minimum:
            raise ValueError(f"{name}={value}: expected at least {minimum}.")
        if value > maximum:
            raise ValueError(f"{name}={value}: expected at most {maximum:,}.")


def check_repeatable(documents: Iterable[str]) -> None:
    """Raise ValueError for an iterator, since training iterates over the documents twice."""
    if iter(documents) is documents:
        raise ValueError(
            "documents: this is an iterator, but training iterates over the documents twice. Pass "
            "a list, or an object whose `__iter__` starts from the beginning."
        )


def warn_if_smaller(size: int, requested: int) -> None:
    """Log a warning if the text was too small for a vocabulary of the requested size."""
    if size < requested:
        logger.warning(
            "the text has only enough repeated pieces for a vocabulary of %d tokens, not %d",
            size,
            requested,
        )


def even_sample(documents: Iterable[str], num_bytes: int, max_bytes: int) -> Iterator[str]:
    """Yield documents spread evenly over the text, up to a total size.

    A document is taken only if the fraction of `max_bytes` used so far, including this document,
    does not exceed the fraction of the text read so far.

    Args:
      documents: the documents to choose from.
      num_bytes: the total size of all documents, in UTF-8 bytes.
      max_bytes: the maximum total size of the documents taken, in UTF-8 bytes.

    Raises:
      ValueError: there is text, but no document fits in `max_bytes`.
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
            f"max_bytes={max_bytes}: the smallest document has {smallest:,} bytes, and "
            "vocabularies are trained on whole documents. Raise the limit or, in plain text, "
            "separate documents with blank lines."
        )


def utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8"))


# With one bit per slot, the table takes up 16 MiB. A million words use less than 1% of the slots.
_NUM_SLOTS_LOG2 = 27
# The base is odd, so it has an inverse modulo 2**64.
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)
_HASH_BASE_INVERSE = np.uint64(pow(int(_HASH_BASE), -1, 2**64))
_MIX = np.uint64(0xD6E8FEB86659FD93)


class WordLimit:
    """A filter that blanks out words so that the total size of distinct words stays bounded.

    Words longer than `max_word_characters` are always blanked out. Other words pass until the
    distinct words seen so far contain `max_total_characters` characters in total. After that, new
    words are blanked out too. Frequent words are therefore counted exactly over the whole stream,
    and only words that first occur late are lost. Words are identified by a hash, so on rare
    occasions a new word is mistaken for one seen before.
    """

    def __init__(
        self,
        inside: NDArray[np.bool_],
        *,
        max_characters: int,
        max_word_characters: int,
        max_total_characters: int,
    ) -> None:
        """Create a filter.

        Args:
          inside: a Boolean array [0x110000] that marks the code points that can be part of a word.
            Other characters always pass.
          max_characters: the length of the longest text that will be filtered.
          max_word_characters: the length of the longest word that passes.
          max_total_characters: the total length of the distinct words that pass.
        """
        self._inside = inside
        self._max_word_characters = max_word_characters
        self._characters_left = max_total_characters
        self._seen = np.zeros(1 << (_NUM_SLOTS_LOG2 - 3), np.uint8)
        self._full = False
        bases = np.full(max_characters, _HASH_BASE)
        inverses = np.full(max_characters, _HASH_BASE_INVERSE)
        bases[0] = inverses[0] = 1
        self._powers = np.multiply.accumulate(bases)
        self._inverse_powers = np.multiply.accumulate(inverses)

    def __call__(self, text: str) -> str:
        """Return the text with blanked-out words replaced by spaces."""
        codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        edges = np.diff(self._inside[codes].astype(np.int8), prepend=0, append=0)
        starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
        dropped = ends - starts > self._max_word_characters
        slots = self._slots(codes, starts, ends)
        unseen = ~dropped & ((self._seen[slots >> 3] >> (slots & 7).astype(np.uint8)) & 1 == 0)
        if self._full:
            dropped |= unseen
        else:
            self._remember(slots[unseen], (ends - starts)[unseen])
        if not dropped.any():
            return text
        blank = np.zeros(len(codes) + 1, np.int8)
        blank[starts[dropped]] = 1
        blank[ends[dropped]] = -1
        return (
            np.where(np.cumsum(blank[:-1]), ord(" "), codes)
            .astype("<u4")
            .tobytes()
            .decode("utf-32-le")
        )

    def _slots(
        self, codes: NDArray[np.uint32], starts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> NDArray[np.int64]:
        """Return each word's slot, which is a polynomial hash computed from running sums."""
        sums = np.zeros(len(codes) + 1, np.uint64)
        np.cumsum(codes * self._powers[: len(codes)], out=sums[1:])
        hashes = (sums[ends] - sums[starts]) * self._inverse_powers[starts]
        hashes = (hashes ^ (hashes >> np.uint64(32))) * _MIX
        return (hashes >> np.uint64(64 - _NUM_SLOTS_LOG2)).astype(np.int64)

    def _remember(self, slots: NDArray[np.int64], lengths: NDArray[np.intp]) -> None:
        slots, first = np.unique(slots, return_index=True)
        np.bitwise_or.at(self._seen, slots >> 3, np.uint8(1) << (slots & 7).astype(np.uint8))
        self._characters_left -= int(lengths[first].sum())
        if self._characters_left <= 0:
            self._full = True
            logger.warning(
                "the text has too many distinct words: from here on, only words seen before are "
                "counted. To count all words, use a smaller sample (--max-bytes)."
            )
