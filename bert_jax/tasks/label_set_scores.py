"""Scores of predictions where several labels may hold for an example, or none."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bert_jax.suggestions import nearest
from bert_jax.tasks.counts import Counts

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
