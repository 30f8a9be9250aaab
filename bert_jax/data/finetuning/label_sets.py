"""Labels of examples for which several may hold, or none: read, checked, and as truths."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.labels import check_labels
from bert_jax.json_files import parse_json

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
