"""Score predictions against labels, as GLUE's scorer does.

There is one prediction per example: a class, a number, or a set of labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_jax.validation import nearest


class Counts(NamedTuple):
    """The numbers of predictions, gold answers and correct predictions for one label or type."""

    predicted: int
    gold: int
    correct: int

    def scores(self) -> dict[str, float]:
        """Return precision, recall and F1 as fractions; each is 0 if its denominator is 0."""
        return {
            "precision": self.correct / max(self.predicted, 1),
            "recall": self.correct / max(self.gold, 1),
            "f1": 2 * self.correct / max(self.predicted + self.gold, 1),
        }


Needs = Literal["class", "number"]

# The kind of value that each metric compares: class indices or numbers.
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
    """Return a dict from metric name to the predictions' score, as a fraction.

    `f1` is the F1 score for class 1, with class 0 as the negative class; `macro_f1` is the mean F1
    over all classes that occur in predictions or labels. If the denominator of a score is 0, the
    score is 0, because SciPy's NaN would make it impossible to compare runs. This affects `f1` if
    class 1 never occurs, `matthews` if all predictions or all labels are the same class, and
    `pearson` and `spearman` if all predictions or all labels are the same number.

    Args:
      metrics: names in `METRICS`.
      predictions: [examples] class indices (integers) or numbers, depending on the metrics.
      labels: same shape and kind of values as `predictions`.

    Raises:
      ValueError: a metric is unknown; the arrays are empty or differ in shape; classes are not
        integers (or, for `f1`, not 0 and 1); or numbers are not finite.
    """
    for name in metrics:
        if name not in METRICS:
            raise ValueError(f"metric {name!r} is unknown; {nearest(name, METRICS)}")
    predicted, expected = np.asarray(predictions), np.asarray(labels)
    if predicted.shape != expected.shape or predicted.ndim != 1 or not len(predicted):
        raise ValueError(
            f"predictions {list(predicted.shape)} and labels {list(expected.shape)}: expected one "
            "prediction and one label per example, and at least one example"
        )
    return {name: _score(name, predicted, expected) for name in metrics}


def _score(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    if METRICS[name] == "number":
        return _correlation(name, predictions, labels)
    for what, array in (("predictions", predictions), ("labels", labels)):
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"{name} compares classes: expected integer {what}, got {array.dtype}")
    if name == "f1":
        _check_two_classes(predictions, labels)
    if name == "matthews" and (_all_equal(predictions) or _all_equal(labels)):
        return 0.0

    # Import scikit-learn here (and SciPy below), since each import takes a second, which would
    # delay every command.
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
            f"f1 supports only classes 0 and 1, but class {others[0]} occurs. Use macro_f1 for "
            "more than two classes"
        )


def _correlation(name: str, predictions: NDArray[Any], labels: NDArray[Any]) -> float:
    predicted, expected = predictions.astype(np.float64), labels.astype(np.float64)
    for what, array in (("prediction", predicted), ("label", expected)):
        if not np.isfinite(array).all():
            index = int(np.flatnonzero(~np.isfinite(array))[0])
            raise ValueError(f"{name}: {what} {index} is {array[index]}, expected a finite number")
    if _all_equal(predicted) or _all_equal(expected):
        return 0.0

    from scipy.stats import pearsonr, spearmanr

    correlation = {"pearson": pearsonr, "spearman": spearmanr}[name]
    return float(correlation(predicted, expected).statistic)


def _all_equal(values: NDArray[Any]) -> bool:
    return bool((values == values[0]).all())


LABEL_SET_METRICS = ("micro_f1", "macro_f1", "exact_match")


def label_set_scores(
    metrics: Sequence[str], predictions: ArrayLike, labels: ArrayLike
) -> dict[str, float]:
    """Return a dict from metric name to the score of the predicted label sets, as a fraction.

    `micro_f1` is the F1 over all labels of all examples. `macro_f1` is the mean of the labels' F1
    scores, where a label that never occurs scores 0. `exact_match` is the fraction of examples for
    which all labels are correct.

    Args:
      metrics: names in `LABEL_SET_METRICS`.
      predictions: booleans [examples, labels] that indicate whether an example has a label.
      labels: same shape and kind of values as `predictions`.

    Raises:
      ValueError: a metric is unknown, or the arrays are empty or differ in shape.
    """
    for name in metrics:
        if name not in LABEL_SET_METRICS:
            raise ValueError(f"metric {name!r} is unknown; {nearest(name, LABEL_SET_METRICS)}")
    predicted, expected = _booleans(predictions, labels)

    # Import scikit-learn here: the import takes a second, which would delay every command.
    from sklearn.metrics import accuracy_score, f1_score

    score = {
        "micro_f1": partial(f1_score, average="micro", zero_division=0),
        "macro_f1": partial(f1_score, average="macro", zero_division=0),
        "exact_match": accuracy_score,
    }
    return {name: float(score[name](expected, predicted)) for name in metrics}


def label_counts(predictions: ArrayLike, labels: ArrayLike) -> list[Counts]:
    """Return the `Counts` for each label, in order.

    See `label_set_scores` for the arguments and errors.
    """
    predicted, expected = _booleans(predictions, labels)
    columns = (predicted.sum(axis=0), expected.sum(axis=0), (predicted & expected).sum(axis=0))
    return [Counts(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def best_constant(metric: str, labels: ArrayLike) -> float:
    """Return the best score that is possible if all examples get the same predicted label set.

    For both F1 metrics, the best set consists of the most common labels, since no other set of the
    same size makes more correct predictions. For exact_match, the best set is the most common one
    in the data.
    """
    _, expected = _booleans(labels, labels)
    order = np.argsort(-expected.sum(axis=0), kind="stable")
    size = expected.shape[1]
    sets = [np.isin(np.arange(size), order[:count]) for count in range(size + 1)]
    rows, counts = np.unique(expected, axis=0, return_counts=True)
    sets.append(rows[counts.argmax()])
    return max(
        label_set_scores([metric], np.broadcast_to(row, expected.shape), expected)[metric]
        for row in sets
    )


def _booleans(predictions: ArrayLike, labels: ArrayLike) -> tuple[NDArray[np.bool_], ...]:
    predicted, expected = np.asarray(predictions, bool), np.asarray(labels, bool)
    if predicted.shape != expected.shape or predicted.ndim != 2 or not predicted.size:
        raise ValueError(
            f"predictions {list(predicted.shape)} and labels {list(expected.shape)}: expected a "
            "boolean for every label of every example, and at least one example"
        )
    return predicted, expected
