"""Score whole sets of predictions, one per example, as the GLUE scorer defines them.

Predictions are a class, a number, or a set of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_jax.validation import nearest


class Counts(NamedTuple):
    """How often it is predicted, is in the gold answers, and is in both."""

    predicted: int
    gold: int
    correct: int

    def scores(self) -> dict[str, float]:
        """precision, recall and f1 as fractions; 0 where one divides by 0."""
        return {
            "precision": self.correct / max(self.predicted, 1),
            "recall": self.correct / max(self.gold, 1),
            "f1": 2 * self.correct / max(self.predicted + self.gold, 1),
        }


Needs = Literal["class", "number"]

# What a metric is of: class indices, or numbers.
METRICS: Mapping[str, Needs] = {
    "accuracy": "class",
    "f1": "class",
    "macro_f1": "class",
    "matthews": "class",
    "pearson": "number",
    "spearman": "number",
}


def sentence_scores(
    metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike
) -> dict[str, float]:
    """Scores by name, as fractions.

    `f1` is of class 1 against class 0; `macro_f1` the mean over the classes that occur among
    predictions or labels. Where a score divides by zero it is 0: `f1` if class 1 occurs nowhere;
    `matthews` if predictions or labels are all one class; `pearson` and `spearman` if either are
    all one number, which tells nothing of the order of the others (SciPy says nan, which no
    comparison of runs survives).

    Args:
      metrics: names in `METRICS`.
      predictions, labels: [examples] class indices (integers) or numbers, as the metrics need.

    Raises:
      ValueError: an unknown metric; arrays that differ in shape or are empty; classes that are no
        integers, or for `f1` others than 0 and 1; numbers that are not finite.
    """
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"metric {name!r} is unknown; {nearest(name, METRICS)}")
    found, expected = np.asarray(predictions), np.asarray(labels)
    if found.shape != expected.shape or found.ndim != 1 or not len(found):
        raise ValueError(
            f"predictions {list(found.shape)} and labels {list(expected.shape)}: expected one of "
            "each for every example, and at least one example"
        )
    return {name: _score(name, found, expected) for name in metrics}


def _score(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    if METRICS[name] == "number":
        return _correlation(name, predictions, labels)
    for what, array in (("predictions", predictions), ("labels", labels)):
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{name} is of classes: expected integer {what}, got {array.dtype}")
    if name == "f1":
        _check_two_classes(predictions, labels)
    if name == "matthews" and (_all_equal(predictions) or _all_equal(labels)):
        return 0.0

    # Imported where it is asked for, as SciPy below: each takes a second, of every command's start.
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    score = {
        "accuracy": accuracy_score,
        "f1": partial(f1_score, zero_division=0),
        "macro_f1": partial(f1_score, average="macro", zero_division=0),
        "matthews": matthews_corrcoef,
    }[name]
    return float(score(labels, predictions))


def _check_two_classes(predictions: NDArray[Any], labels: NDArray[Any]) -> None:
    others = sorted(set(np.unique([predictions, labels]).tolist()) - {0, 1})
    if others:
        raise ValueError(
            f"f1 is of class 1 against class 0, found class {others[0]}; expected two classes, or "
            "the metric macro_f1"
        )


def _correlation(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    found, expected = predictions.astype(np.float64), labels.astype(np.float64)
    for what, array in (("prediction", found), ("label", expected)):
        if not np.isfinite(array).all():
            index = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(f"{name}: {what} {index} is {array[index]}, expected a finite number")
    if _all_equal(found) or _all_equal(expected):
        return 0.0

    from scipy.stats import pearsonr, spearmanr

    correlation = {"pearson": pearsonr, "spearman": spearmanr}[name]
    return float(correlation(found, expected).statistic)


def _all_equal(values: NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


LABEL_SET_METRICS = ("micro_f1", "macro_f1", "exact_match")


def label_set_scores(
    metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike
) -> dict[str, float]:
    """Scores by name, as fractions.

    `micro_f1` is over all labels of all examples; `macro_f1` the mean of every label's own, 0 of
    one that is nowhere; `exact_match` the share of examples all of whose labels are right.

    Args:
      metrics: names in `LABEL_SET_METRICS`.
      predictions, labels: [examples, labels] truths: whether a label holds.

    Raises:
      ValueError: an unknown metric; arrays that differ in shape or are empty.
    """
    for name in metrics:
        if name not in LABEL_SET_METRICS:
            raise ValueError(f"metric {name!r} is unknown; {nearest(name, LABEL_SET_METRICS)}")
    found, expected = _truths(predictions, labels)

    # Imported where it is asked for: it takes a second, of every command's start.
    from sklearn.metrics import accuracy_score, f1_score

    score = {
        "micro_f1": partial(f1_score, average="micro", zero_division=0),
        "macro_f1": partial(f1_score, average="macro", zero_division=0),
        "exact_match": accuracy_score,
    }
    return {name: float(score[name](expected, found)) for name in metrics}


def label_counts(predictions: ArrayLike, labels: ArrayLike) -> list[Counts]:
    """Of every label, in order. Arguments and errors as `label_set_scores`."""
    found, expected = _truths(predictions, labels)
    columns = (found.sum(axis=0), expected.sum(axis=0), (found & expected).sum(axis=0))
    return [Counts(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def best_constant(metric: str, labels: ArrayLike) -> float:
    """The best score that giving every example the same labels has.

    For either F1 that is one of the sets of the commonest labels: more right answers for as many
    given cannot be had. For exact_match it is the commonest set.
    """
    _, expected = _truths(labels, labels)
    order = np.argsort(-expected.sum(axis=0), kind="stable")
    size = expected.shape[1]
    sets = [np.isin(np.arange(size), order[:count]) for count in range(size + 1)]
    rows, counts = np.unique(expected, axis=0, return_counts=True)
    sets.append(rows[counts.argmax()])
    return max(
        label_set_scores([metric], np.broadcast_to(each, expected.shape), expected)[metric]
        for each in sets
    )


def _truths(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.bool_], ...]:
    found, expected = np.asarray(predictions, bool), np.asarray(labels, bool)
    if found.shape != expected.shape or found.ndim != 2 or not found.size:
        raise ValueError(
            f"predictions {list(found.shape)} and labels {list(expected.shape)}: expected a truth "
            "of each label for every example, and at least one example"
        )
    return found, expected
