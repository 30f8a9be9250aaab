"""Check labels against a task's set and convert them to numbers, for one label or several."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.json_files import parse_json
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


_TRUTHS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


def sets_in_cells(
    cells: Sequence[str], places: Sequence[str], expected: Sequence[str], separator: str
) -> list[frozenset[str]]:
    """The labels of every cell: none in an empty one, else between separators or a JSON array.

    Spaces around a label are not of it. Numbers of an array are labels as JSON writes them.

    Raises:
        ValueError: an array that is not JSON or holds more than strings and numbers, a label
            outside `expected`; names file, line and value.
    """
    found = [
        _split(cell, place, separator, expected) for cell, place in zip(cells, places, strict=True)
    ]
    flat = [(label, place) for each, place in zip(found, places, strict=True) for label in each]
    check_labels([label for label, _ in flat], [place for _, place in flat], expected)
    return [frozenset(each) for each in found]


def sets_in_columns(
    columns: Mapping[str, Sequence[str]], places: Sequence[str]
) -> list[frozenset[str]]:
    """The labels of every row, each of which has a column of its name.

    Raises:
        ValueError: a cell that is neither 1 (true) nor 0 (false); names file, line and value.
    """
    found: list[set[str]] = [set() for _ in places]
    for label, cells in columns.items():
        for each, cell, place in zip(found, cells, places, strict=True):
            if cell.strip().lower() not in _TRUTHS:
                raise ValueError(
                    f"{place}: column {label!r} is {cell[:80]!r}; expected 1 (or true) where the "
                    "label holds, else 0 (or false)"
                )
            if _TRUTHS[cell.strip().lower()]:
                each.add(label)
    return [frozenset(each) for each in found]


def is_label_cell(cell: str, expected: Sequence[str], separator: str) -> bool:
    """Whether `sets_in_cells` takes a cell; without a separator `sets_in_columns`."""
    if not separator:
        return cell.strip().lower() in _TRUTHS
    try:
        sets_in_cells([cell], [""], expected, separator)
    except ValueError:
        return False
    return True


def label_truths(
    label_sets: Sequence[frozenset[str]], expected: Sequence[str]
) -> NDArray[np.float32]:
    """[examples, labels] 1 where a label of `expected` holds, else 0."""
    truths = [[label in each for label in expected] for each in label_sets]
    return np.array(truths, np.float32)


def _split(cell: str, place: str, separator: str, expected: Sequence[str]) -> list[str]:
    text = cell.strip()
    parts = [part.strip() for part in text.split(separator)] if text else []
    # A label may begin with a bracket itself.
    if text.startswith("[") and parts[0] not in expected:
        return _array(text, place)
    return parts


def _array(text: str, place: str) -> list[str]:
    try:
        values: list[Any] = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{place}: labels {text[:80]!r} begin like a JSON array and are none: {error}"
        ) from error
    if any(x is None or isinstance(x, (list, dict)) for x in values):
        raise ValueError(f"{place}: labels {text[:80]!r}; expected strings or numbers in the array")
    return [x if isinstance(x, str) else json.dumps(x) for x in values]
