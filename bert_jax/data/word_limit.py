"""Bounds how many different words a stream of text can hold, whatever its size."""

from __future__ import annotations

import logging

import numpy as np
from numpy.typing import NDArray

logger = logging.getLogger(__name__)

_NUM_SLOTS_LOG2 = 27  # one bit each, 16 MiB, of which a million words take less than 1 %
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so it has an inverse modulo 2**64
_HASH_BASE_INVERSE = np.uint64(pow(int(_HASH_BASE), -1, 2**64))
_MIX = np.uint64(0xD6E8FEB86659FD93)


class WordLimit:
    """Blanks out words of a text so that those it lets through, over all texts, stay bounded.

    A word longer than `max_word_characters` never passes. Others do until the different words
    seen have `max_total_characters` together; from then on only words seen before. So the most
    frequent words are counted exactly over the whole stream, and it is those that first appear
    late that are lost. Words are told apart by a hash: a new one may, rarely, pass as seen.
    """

    def __init__(
        self,
        inside: NDArray[np.bool_],
        *,
        max_characters: int,
        max_word_characters: int,
        max_total_characters: int,
    ) -> None:
        """`inside` [0x110000]: the code points words are made of; others are let through.

        `max_characters` is the longest text that will come.
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
        """The text, with a space in place of each character of a word that does not pass."""
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
        """Each word's hash: its polynomial in the base modulo 2**64, from running sums, mixed."""
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
                "the text has so many different words that from here on only those already seen "
                "are counted; a smaller sample (--max-bytes) would be counted whole"
            )
