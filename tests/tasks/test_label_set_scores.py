"""Compare label-set scores with scikit-learn, and test the best constant prediction."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from sklearn.metrics import f1_score, precision_recall_fscore_support

from bert_jax.tasks.sentence_scores import (
    LABEL_SET_METRICS,
    best_constant,
    label_counts,
    label_set_scores,
)


def drawn(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 40)), int(rng.integers(2, 6)))
    rates = rng.random(shape[1])
    return rng.random(shape) < rng.random(), rng.random(shape) < rates


@pytest.mark.parametrize("seed", range(200))
def test_scores_match_scikit_learn(seed: int) -> None:
    predicted, gold = drawn(seed)
    scores = label_set_scores(LABEL_SET_METRICS, predicted, gold.astype(np.float32))
    assert scores["micro_f1"] == f1_score(gold, predicted, average="micro", zero_division=0)
    assert scores["macro_f1"] == f1_score(gold, predicted, average="macro", zero_division=0)
    assert scores["exact_match"] == (predicted == gold).all(axis=1).mean()
    expected = precision_recall_fscore_support(gold, predicted, zero_division=0)
    for row, *values in zip(label_counts(predicted, gold), *expected, strict=True):
        assert row.gold == values[3]
        assert list(row.scores().values()) == pytest.approx(values[:3])


@pytest.mark.parametrize("seed", range(60))
def test_best_constant_matches_an_exhaustive_search(seed: int) -> None:
    _, gold = drawn(seed)
    for metric in LABEL_SET_METRICS:
        tried = [
            label_set_scores([metric], np.tile(np.array(row, bool), (len(gold), 1)), gold)[metric]
            for row in product((0, 1), repeat=gold.shape[1])
        ]
        assert best_constant(metric, gold) == pytest.approx(max(tried))


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="metric 'micro_f' is unknown; .*micro_f1"):
        label_set_scores(["micro_f"], [[1]], [[1]])
    with pytest.raises(ValueError, match=r"predictions \[2\] and labels \[2\]"):
        label_set_scores(["micro_f1"], [1, 0], [1, 0])
    with pytest.raises(ValueError, match="at least one example"):
        label_set_scores(["micro_f1"], np.zeros((0, 2)), np.zeros((0, 2)))
