"""Detect the labels in a column: classes, or numbers to predict."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from bert_jax.data.finetuning.column_profiles import MOST_VALUES, ColumnProfile, as_number

KEYS = "sentences.files."  # prefix of the keys named in messages
# Most distinct values with which a column is detected as classes by its content.
FEW_CLASSES = 20
_MOST_CLASSES = 1_000
_PLACEHOLDERS = frozenset(["", "-", "--", "?", "nan", "n/a", "#n/a", "<na>", "null"])
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")


def kept(values: Mapping[str, int], skip_labels: Collection[str]) -> Counter[str]:
    """Return how often each value occurs, leaving out skipped values."""
    return Counter({cell: n for cell, n in values.items() if cell not in skip_labels})


def labels_in(
    column: ColumnProfile, path: str, skip_labels: Collection[str], *, forced: bool
) -> tuple[str, ...]:
    """Return the labels in a column in ascending order, numbers by value; () to predict numbers.

    Up to 20 distinct whole numbers are classes; more than 20 distinct numbers, some of them not
    whole, are numbers to predict.

    Args:
        column: the label column.
        path: the file's path, for messages.
        skip_labels: the values that are not labels.
        forced: whether every value, including numbers, is a class.

    Raises:
        ValueError: rows lack a label, there are fewer than two labels or far too many, labels seem
            to be missing or misspelled, or numbers could be either; says which keys to set.
    """
    where = f"the label column {column.name!r}"
    if column.nested:
        raise ValueError(
            f"{path}: {where} holds lists. If a row can have several labels, set {KEYS}labels and "
            "separator"
        )
    if column.missing and "" not in skip_labels:
        raise ValueError(
            f"{column.first_missing}: no label in {where}, as in {column.missing:,} of "
            f"{column.rows + column.missing:,} rows. Fill it in, or skip such rows with "
            f"""{KEYS}skip_labels="('',)\""""
        )
    values = None if column.values is None else kept(column.values, skip_labels)
    few = values is not None and len(values) <= FEW_CLASSES
    count = f"more than {MOST_VALUES:,}" if values is None else f"{len(values):,}"
    if values is not None:
        _check_values(values, path, where)
    cells = None if values is None else [as_number(cell) for cell in values]
    numbers = column.numbers if cells is None else None not in cells
    whole = column.whole if cells is None else all(x.is_integer() for x in cells if x)
    if numbers and not forced:
        if not few and not whole:
            return ()
        if not few or not whole:
            raise ValueError(
                f"{path}: {where} has {count} different numbers, which could be numbers to predict "
                f"""or classes. Set {KEYS}labels="()" for numbers or "('classes',)" for classes"""
            )
    rows = column.rows if values is None else sum(values.values())
    if values and all(map(_DECIMAL_COMMA.fullmatch, values)) and not forced:
        raise ValueError(
            f"{path}: the values of {where}, such as {min(values)!r}, seem to be numbers with "
            "decimal commas. Write them with decimal points, or, if they are classes, set "
            f"""{KEYS}labels="('classes',)\""""
        )
    if values is None or len(values) > _MOST_CLASSES or (2 * len(values) > rows and not forced):
        raise ValueError(
            f"{path}: {where} has {count} different values in {rows:,} rows, too many for classes. "
            f"Set {KEYS}label to another column, or list all labels in {KEYS}labels"
        )
    _check_spelling(values, path, where)
    return tuple(sorted(values, key=lambda cell: (as_number(cell) or 0.0, cell)))


def _check_values(values: Mapping[str, int], path: str, where: str) -> None:
    if len(values) < 2:
        every = f"every label in {where} is {min(values)!r}" if values else f"{where} has no labels"
        raise ValueError(
            f"{path}: {every}; expected at least two different labels. Set {KEYS}label to another "
            "column, or add rows with other labels"
        )
    for cell, count in values.items():
        if _is_placeholder(cell, values):
            raise ValueError(
                f"{path}: {cell!r} in {where} ({count:,} rows) often stands for a missing label. "
                f"""Skip such rows with {KEYS}skip_labels="({cell!r},)", or, if it is a label, """
                f"list all labels in {KEYS}labels"
            )


def _check_spelling(values: Iterable[str], path: str, where: str) -> None:
    """Refuse labels that differ only in case, white space or number format."""
    spelled: dict[object, str] = {}
    for cell in sorted(values):
        number = as_number(cell)
        key = cell.strip().casefold() if number is None else number
        if (other := spelled.setdefault(key, cell)) != cell:
            raise ValueError(
                f"{path}: {other!r} and {cell!r} in {where} seem to be the same label. Fix the "
                f"file, or, if they differ, list all labels in {KEYS}labels"
            )


def _is_placeholder(cell: str, values: Collection[str]) -> bool:
    if cell.strip().casefold() in _PLACEHOLDERS:
        return True
    # A single negative number before 0, 1, 2, ... means "no label" in many data sets; next to 0 and
    # 1 only, or to other negative numbers, it may be a polarity or a point on a scale.
    negative = any(value != cell and value.startswith("-") for value in values)
    return cell == "-1" and {"0", "1", "2"} <= set(values) and not negative
