"""Labels of examples: checked against the set of a task, and as numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from bert_jax.validation import check_label_names


def check_labels(
    labels: Sequence[str], places: Sequence[str], expected: Sequence[str], *, header: bool = True
) -> None:
    """Refuses a label outside `expected`; without `expected`, one that is no finite number.

    header: whether the file's first line was read as names of columns. Raises ValueError naming
    file, line, value and what was expected.
    """
    known = frozenset(expected)
    wrong = [i for i, label in enumerate(labels) if not is_label(label, known)]
    if not wrong:
        return
    index = wrong[0]
    hint = ""
    if not header and wrong == [0] and len(labels) > 1:
        hint = (
            ". All other rows have one: if this line names the columns, take it out, or say "
            "form.header=True if all files have such a line"
        )
    raise ValueError(f"{places[index]}: label {labels[index]!r}; expected {_set(expected)}{hint}")


def is_label(label: str, known: Collection[str]) -> bool:
    """Whether it is one of `known`; without them, a finite number."""
    if known:
        return label in known
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def check_label_set(labels: Sequence[str], names: Sequence[str] = ()) -> None:
    """Refuses a set of labels with less than two or the same twice, or names that do not fit it.

    Also refuses labels that `check_label_names` refuses.
    """
    if len(labels) == 1:
        parts = tuple(part.strip(" []()'\"") for part in labels[0].split(","))
        hint = f'. Several are written "{parts}", quotes included' if len(parts) > 1 else ""
        raise ValueError(
            f"labels is {tuple(labels)}; expected at least two, or () for numbers{hint}"
        )
    for what, values in (("labels", labels), ("label_names", names)):
        check_label_names(values, what)
    if names and len(names) != len(labels):
        raise ValueError(f"{len(names)} label_names for {len(labels)} labels; expected one each")


def check_skipped(skip_labels: Sequence[str], labels: Sequence[str]) -> None:
    """Refuse skip_labels that are also labels."""
    if both := set(skip_labels) & set(labels):
        raise ValueError(
            f"skip_labels={tuple(skip_labels)}: {min(both)!r} is also one of the labels. Remove it "
            "from skip_labels or from labels"
        )


def label_numbers(labels: Sequence[str], expected: Sequence[str]) -> NDArray:
    """Checked labels as int32 places in `expected`; without it float32 numbers. [labels]"""
    if not expected:
        return np.array([float(label) for label in labels], np.float32)
    number_of = {label: number for number, label in enumerate(expected)}
    return np.array([number_of[label] for label in labels], np.int32)


def _set(expected: Sequence[str]) -> str:
    if not expected:
        return "a finite number, as no labels are given"
    more = f" or another of {len(expected)}" if len(expected) > 40 else ""
    return f"one of {', '.join(map(repr, expected[:40]))}{more}"
