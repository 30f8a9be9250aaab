"""Where tokens stand in a text, without the white space around them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def without_spaces(offsets: NDArray[np.int32], text: str) -> NDArray[np.int32]:
    """Offsets [tokens, 2] of tokens that neither begin nor end in white space of the text.

    A token of white space alone stands, empty, behind it.
    """
    space = np.array([character.isspace() for character in text] + [False])
    if not space.any():
        return offsets
    places = np.arange(len(space), dtype=np.int32)
    # The next character from each on that is none, and the end of the last before each.
    after = np.minimum.accumulate(np.where(space, len(text), places)[::-1])[::-1]
    before = np.concatenate([[0], np.maximum.accumulate(np.where(space, 0, places + 1))[:-1]])
    starts = np.minimum(after[offsets[:, 0]], offsets[:, 1])
    ends = np.maximum(before[offsets[:, 1]], starts)
    return np.stack([starts, ends], axis=1).astype(np.int32)


def word_spans(word_ids: Sequence[int], characters: NDArray[np.int32]) -> NDArray[np.int32]:
    """From the first to the last character of the tokens of each word that has any."""
    if not word_ids:
        return np.empty((0, 2), np.int32)
    firsts = np.flatnonzero(np.diff(np.array(word_ids, np.int32), prepend=-1))
    ends = np.maximum.reduceat(characters[:, 1], firsts)
    found = np.stack([characters[firsts, 0], ends], axis=1)
    return found[found[:, 0] < found[:, 1]]
