"""Measure how closely attention heads follow simple patterns (Clark et al. 2019, section 3)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.interpretability.traced_text import TracedText

FloatArray = NDArray[np.float32]


class HeadPatterns(NamedTuple):
    """How closely each head follows each pattern, from 0 to 1, as float32 [layers, heads].

    Attributes:
      previous: the mean attention to the previous token.
      next: the mean attention to the next token.
      separator: the mean of the total attention that other tokens pay to `[SEP]` tokens.
      broad: the mean entropy of the attention, divided by the maximum entropy (the logarithm of the
        number of tokens).
    """

    previous: FloatArray
    next: FloatArray
    separator: FloatArray
    broad: FloatArray


def head_patterns(trace: TracedText, separator: str = "[SEP]") -> HeadPatterns:
    """Return how closely each head follows simple patterns in a text.

    Args:
      trace: the traced text.
      separator: the tokenizer's separator token.
    """
    attention = trace.attention
    length = attention.shape[-1]
    is_separator = np.array([token == separator for token in trace.tokens])
    entropy = -np.sum(attention * np.log(np.maximum(attention, 1e-30)), axis=-1)
    to_separators = attention[..., is_separator].sum(axis=-1)
    return HeadPatterns(
        np.diagonal(attention, -1, 2, 3).mean(axis=-1),
        np.diagonal(attention, 1, 2, 3).mean(axis=-1),
        to_separators[..., ~is_separator].mean(axis=-1),
        entropy.mean(axis=-1) / np.log(max(length, 2)),
    )
