"""Texts to ids without holding more of them as Python numbers than need be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.tokenizer import Tokenizer

# Texts encoded at once: the tokenizers library holds some 100 bytes a token until they are arrays.
TEXTS_AT_ONCE = 1000

Ids = NDArray[np.int32]


def encoded_by_parts(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[list[int]]:
    """Yields the ids of each text; those of `TEXTS_AT_ONCE` are held at a time."""
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        yield from tokenizer.encode_batch(texts[start : start + TEXTS_AT_ONCE])


def as_ids(ids: Sequence[int]) -> Ids:
    """To be kept: 4 bytes a token."""
    return np.array(ids, np.int32)
