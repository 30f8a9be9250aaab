"""Special tokens that a text spells out, where a vocabulary has them among its pieces.

A SentencePiece model may cut `[MASK]` out of a text as the piece it is, whatever is said of special
tokens: a space behind its first character keeps it from that.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def broken(text: str, tokens: tuple[str, ...]) -> str:
    """The text with a space in each of `tokens` that it spells, in letters of either case."""
    return _spelled(tokens).sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)


def unbroken(offsets: NDArray[np.int32], text: str, tokens: tuple[str, ...]) -> NDArray[np.int32]:
    """Offsets [tokens, 2] in `broken(text)` as those in `text`."""
    starts = [match.start() for match in _spelled(tokens).finditer(text)]
    if not starts:
        return offsets
    spaces = np.array(starts) + 1 + np.arange(len(starts))
    return (offsets - np.searchsorted(spaces, offsets)).astype(np.int32)


@lru_cache
def _spelled(tokens: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, tokens)), re.IGNORECASE)
