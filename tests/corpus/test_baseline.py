"""Test the unigram baseline: the lowest loss that a model without context can reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_jax.corpus.corpus import unigram_cross_entropy


class Tokens:
    """A split whose records are rows of tokens."""

    directory = split = "test"

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = rows
        self.manifest = SimpleNamespace(vocab_size=8)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, indices: Any) -> list[list[int]]:
        return [self.rows[index] for index in indices]

    def decode(self, indices: Any, records: list[list[int]]) -> Any:
        return SimpleNamespace(tokens=np.concatenate(records))


def test_tokens_that_are_never_predicted_are_not_counted() -> None:
    train, held_out = Tokens([[5, 5, 6], [1, 1, 1, 1]]), Tokens([[5, 6, 1, 1]])
    smoothed = {5: 3, 6: 2}
    total = sum(smoothed.values()) + 3  # Add 1 for each of the other possible ids: 0, 4 and 7.
    expected = np.mean([-np.log(smoothed[token] / total) for token in (5, 6)])
    loss = unigram_cross_entropy(train, held_out, special_ids=(1, 2, 3))  # type: ignore[arg-type]
    assert loss == pytest.approx(expected)
    assert unigram_cross_entropy(train, held_out) != pytest.approx(expected)  # type: ignore[arg-type]
