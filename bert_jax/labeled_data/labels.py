"""Check labels and label sets against a task's labels, and convert them to numbers."""

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
    labels: Sequence[str], locations: Sequence[str], expected: Sequence[str], *, header: bool = True
) -> None:
    """Check that labels are in `expected` or, if `expected` is empty, that they are finite numbers.

    Args:
        labels: [examples] the labels.
        locations: [examples] "file:line".
        expected: the task's labels, or () if it predicts numbers.
        header: whether the file's first line was read as column names.

    Raises:
        ValueError: a label fails the check. The message gives the file, line and value.
    """
    expected_set = frozenset(expected)
    invalid = [i for i, label in enumerate(labels) if not is_label(label, expected_set)]
    if not invalid:
        return
    index = invalid[0]
    hint = ""
    if not header and invalid == [0] and len(labels) > 1:
        hint = (
            ". All other rows have a valid label, so this line may contain the column names. "
            "Remove it, or set form.header=True if all files have such a line"
        )
    raise ValueError(
        f"{locations[index]}: label {labels[index]!r} is not {_describe(expected)}{hint}"
    )


def is_label(label: str, expected: Collection[str]) -> bool:
    """Return whether a label is in `expected` or, if `expected` is empty, a finite number."""
    if expected:
        return label in expected
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def check_label_set(labels: Sequence[str], names: Sequence[str] = ()) -> None:
    """Check a task's labels and their display names.

    Args:
        labels: the labels as they appear in files, or () if the task predicts numbers.
        names: the display names, one for each label, or () to display the labels themselves.

    Raises:
        ValueError: there is only one label, the numbers of labels and names differ, or
            `check_label_names` rejects the labels or the names.
    """
    if len(labels) == 1:
        parts = tuple(part.strip(" []()'\"") for part in labels[0].split(","))
        hint = f'. Write several labels as "{parts}", with the quotes' if len(parts) > 1 else ""
        raise ValueError(
            f"labels={tuple(labels)}: expected at least two labels, or () for numbers{hint}"
        )
    for key, values in (("labels", labels), ("label_names", names)):
        check_label_names(values, key)
    if names and len(names) != len(labels):
        raise ValueError(
            f"there are {len(names)} label_names for {len(labels)} labels. Specify one name per "
            "label"
        )


def check_skipped(skip_labels: Sequence[str], labels: Sequence[str]) -> None:
    """Check that none of the labels to skip is one of the task's labels."""
    if both := set(skip_labels) & set(labels):
        raise ValueError(
            f"skip_labels={tuple(skip_labels)}: {min(both)!r} is also one of the labels. Remove it "
            "from skip_labels or from labels"
        )


def label_numbers(labels: Sequence[str], expected: Sequence[str]) -> NDArray:
    """Convert valid labels to int32 indices into `expected`, or float32 if `expected` is empty."""
    if not expected:
        return np.array([float(label) for label in labels], np.float32)
    number_of = {label: number for number, label in enumerate(expected)}
    return np.array([number_of[label] for label in labels], np.int32)


def _describe(expected: Sequence[str]) -> str:
    if not expected:
        return "a finite number, which is required because no labels are configured"
    more = f" (the first 40 of {len(expected)})" if len(expected) > 40 else ""
    return f"one of {', '.join(map(repr, expected[:40]))}{more}"


_BOOLEANS = {"1": True, "0": False, "true": True, "false": False, "1.0": True, "0.0": False}


def label_sets_in_cells(
    cells: Sequence[str], locations: Sequence[str], expected: Sequence[str], separator: str
) -> list[frozenset[str]]:
    """Parse the set of labels in each cell of a column.

    A cell is empty, contains labels joined by the separator, or contains a JSON array of labels.
    Spaces around labels are removed. If an array contains a number, its JSON text is used as
    the label.

    Args:
        cells: [examples] the cells.
        locations: [examples] "file:line".
        expected: the task's labels.
        separator: the separator between labels.

    Raises:
        ValueError: an array is not valid JSON or contains values other than strings and numbers, or
            a label is not in `expected`. The message gives the file, line and value.
    """
    label_lists = [
        _split(cell, location, separator, expected)
        for cell, location in zip(cells, locations, strict=True)
    ]
    flat = [
        (label, location)
        for labels, location in zip(label_lists, locations, strict=True)
        for label in labels
    ]
    check_labels([label for label, _ in flat], [location for _, location in flat], expected)
    return list(map(frozenset, label_lists))


def label_sets_in_columns(
    columns: Mapping[str, Sequence[str]], locations: Sequence[str]
) -> list[frozenset[str]]:
    """Collect each row's set of labels from a table that has one column per label.

    Args:
        columns: {label: [examples] cells}.
        locations: [examples] "file:line".

    Raises:
        ValueError: a cell is neither 1 (true) nor 0 (false). The message gives the file, line and
            value.
    """
    label_sets: list[set[str]] = [set() for _ in locations]
    for label, cells in columns.items():
        for label_set, cell, location in zip(label_sets, cells, locations, strict=True):
            if cell.strip().lower() not in _BOOLEANS:
                raise ValueError(
                    f"{location}: column {label!r} contains {cell[:80]!r}. Write 1 (or true) if "
                    "the row has this label, and 0 (or false) if not"
                )
            if _BOOLEANS[cell.strip().lower()]:
                label_set.add(label)
    return list(map(frozenset, label_sets))


def is_label_cell(cell: str, expected: Sequence[str], separator: str) -> bool:
    """Return whether a cell contains a valid set of labels or, if `separator` is "", a boolean."""
    if not separator:
        return cell.strip().lower() in _BOOLEANS
    try:
        label_sets_in_cells([cell], [""], expected, separator)
    except ValueError:
        return False
    return True


def label_indicators(
    label_sets: Sequence[frozenset[str]], expected: Sequence[str]
) -> NDArray[np.float32]:
    """Return indicators, [examples, labels]: 1 if the example has the label, and 0 if not."""
    indicators = [[label in label_set for label in expected] for label_set in label_sets]
    return np.array(indicators, np.float32)


def _split(cell: str, location: str, separator: str, expected: Sequence[str]) -> list[str]:
    text = cell.strip()
    parts = [part.strip() for part in text.split(separator)] if text else []
    # A single label may itself begin with a bracket.
    if text.startswith("[") and parts[0] not in expected:
        return _parse_array(text, location)
    return parts


def _parse_array(text: str, location: str) -> list[str]:
    try:
        values: list[Any] = parse_json(text)
    except ValueError as error:
        raise ValueError(
            f"{location}: labels {text[:80]!r} begin with a bracket but are not a JSON array: "
            f"{error}"
        ) from error
    if any(x is None or isinstance(x, (list, dict)) for x in values):
        raise ValueError(
            f"{location}: the array of labels {text[:80]!r} may only contain strings and numbers"
        )
    return [x if isinstance(x, str) else json.dumps(x) for x in values]
