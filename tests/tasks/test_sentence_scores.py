"""Compare scores with independent implementations of the published formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bert_jax.tasks.sentence_scores import METRICS, sentence_scores


def matthews(predictions: list[int], labels: list[int]) -> float:
    """Return the Matthews correlation for two classes (Matthews 1975)."""
    pairs = list(zip(predictions, labels, strict=True))
    tp, tn, fp, fn = (pairs.count(cell) for cell in ((1, 1), (0, 0), (1, 0), (0, 1)))
    product = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return (tp * tn - fp * fn) / math.sqrt(product) if product else 0.0


def f1(predictions: list[int], labels: list[int], positive: int = 1) -> float:
    pairs = [(p == positive, y == positive) for p, y in zip(predictions, labels, strict=True)]
    twice_correct = 2 * pairs.count((True, True))
    total = twice_correct + pairs.count((True, False)) + pairs.count((False, True))
    return twice_correct / total if total else 0.0


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value, where equal values all get their mean rank."""
    return np.array([(values < v).sum() + ((values == v).sum() - 1) / 2 for v in values])


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.5, 0.97])
def test_two_classes(rate: float) -> None:
    rng = np.random.default_rng(int(100 * rate))
    for size in rng.integers(1, 40, 300):
        drawn = (rng.random((2, size)) < rate).astype(np.int32)
        names = ["accuracy", "f1", "macro_f1", "matthews"]
        scores = sentence_scores(names, *drawn)
        predictions, labels = drawn.tolist()
        classes = sorted({*predictions, *labels})
        expected = {
            "accuracy": np.mean(drawn[0] == drawn[1]),
            "f1": f1(predictions, labels),
            "macro_f1": np.mean([f1(predictions, labels, c) for c in classes]),
            "matthews": matthews(predictions, labels),
        }
        assert scores == pytest.approx(expected, abs=1e-12)


def test_several_classes() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        predictions, labels = rng.integers(0, 4, (2, 12)).tolist()
        scores = sentence_scores(["macro_f1", "matthews"], predictions, labels)
        classes = sorted({*predictions, *labels})
        expected = np.mean([f1(predictions, labels, c) for c in classes])
        assert scores["macro_f1"] == pytest.approx(expected, abs=1e-12)
        # Gorodkin 2004 defines this score as the correlation between two indicator matrices.
        one, other = (np.eye(4)[array] for array in (predictions, labels))
        one, other = one - one.mean(axis=0), other - other.mean(axis=0)
        scale = math.sqrt((one * one).sum() * (other * other).sum())
        expected = (one * other).sum() / scale if scale else 0.0
        assert scores["matthews"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_correlations(dtype: type) -> None:
    rng = np.random.default_rng(0)
    for size in rng.integers(2, 40, 300):
        labels = (rng.integers(0, 6, size) / 2).astype(dtype)
        predictions = (labels + rng.choice([0.01, 1, 100]) * rng.standard_normal(size)).astype(
            dtype
        )
        if len(set(labels.tolist())) == 1:
            continue
        scores = sentence_scores(["pearson", "spearman"], predictions, labels)
        expected = {
            "pearson": pearson(predictions.astype(np.float64), labels.astype(np.float64)),
            "spearman": pearson(ranks(predictions), ranks(labels)),
        }
        assert scores == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman"])
def test_correlations_of_constants_are_zero(name: str) -> None:
    varied, constant = [0, 1, 1, 0, 1], [1] * 5
    for one, other in ((varied, constant), (constant, varied), (constant, constant), ([1], [1])):
        assert sentence_scores([name], one, other) == {name: 0.0}
    assert sentence_scores([name], varied, varied)[name] == pytest.approx(1.0)
    assert sentence_scores([name], 1 - np.array(varied), varied)[name] == pytest.approx(-1.0)


def test_a_class_that_never_occurs() -> None:
    assert sentence_scores(["f1", "macro_f1"], [0, 0], [0, 0]) == {"f1": 0.0, "macro_f1": 1.0}
    assert sentence_scores(["f1"], [0, 0], [0, 1]) == {"f1": 0.0}


def test_all_scores_are_python_floats() -> None:
    scores = sentence_scores(list(METRICS), np.array([0, 1, 1]), np.array([0, 1, 0]))
    assert scores.keys() == METRICS.keys()
    assert all(type(value) is float for value in scores.values())


@pytest.mark.parametrize(
    ("name", "predictions", "labels", "words"),
    [
        ("mathews", [0], [0], "metric 'mathews' is unknown; nearest: matthews"),
        ("f1", [0, 2], [0, 1], "f1 supports only classes 0 and 1, but class 2 occurs"),
        ("accuracy", [0.5], [0], "expected integer predictions, got float64"),
        ("accuracy", [0, 1], [0], r"predictions \[2\] and labels \[1\]"),
        ("accuracy", [], [], "at least one example"),
        ("pearson", [0.0, math.nan], [0.0, 1.0], "prediction 1 is nan, expected a finite number"),
    ],
)
def test_invalid_arguments_are_refused(
    name: str, predictions: list, labels: list, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        sentence_scores([name], predictions, labels)
