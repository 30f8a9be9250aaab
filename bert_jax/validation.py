"""Check values shared by commands and configs, and word what is wrong with them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

SEEDS = 1 << 32  # a JAX key takes 32 bits


def check_seed(seed: int, name: str = "seed") -> None:
    """Refuse a seed outside 0 to 2^32 - 1.

    Args:
      seed: the seed given by the user.
      name: the option or config key that holds it.

    Raises:
      ValueError: the seed is out of range.
    """
    if not 0 <= seed < SEEDS:
        raise ValueError(f"{name}={seed}: expected 0 up to 2^32 - 1, the range of a JAX key")


def check_label_names(labels: Sequence[str], name: str = "labels") -> None:
    """Refuse label names that are empty or repeated, or would break a line of predictions.

    Args:
      labels: the names, in the order of the scores.
      name: the option or config key that holds them.

    Raises:
      ValueError: a name is blank or repeated, or contains a tab or a line break.
    """
    if isinstance(labels, str) or len(set(labels)) != len(labels):
        raise ValueError(f"{name} is {labels!r}; expected a tuple of different strings")
    if any(not label.strip() for label in labels):
        raise ValueError(f"{name} has an empty name in {tuple(labels)!r}. Name every label.")
    if broken := [label for label in labels if set(label) & set("\t\r\n")]:
        raise ValueError(
            f"{name} has {broken[0]!r}; expected no tab and no end of a line in it, which "
            "would break the lines of predictions"
        )


@contextmanager
def renamed_in_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Replace names in the messages of ValueErrors raised in the body.

    A function names its parameters, but a user may have typed an option or a config's key.

    Args:
      names: the options or full keys, by the names that the function uses.
    """
    try:
        yield
    except ValueError as error:
        pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, names))})(?![\w/-])"
        message = re.sub(pattern, lambda match: names[match[0]], str(error))
        if message == str(error):
            raise
        raise ValueError(message) from error


def nearest(name: str, known: Iterable[str]) -> str:
    """Say what was probably meant, or everything there is.

    >>> nearest("pretain", ["prepare", "pretrain"])
    'nearest: pretrain, prepare'
    """
    names = list(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"nearest: {', '.join(close)}" if close else f"there are: {', '.join(sorted(names))}"


_MOST_KEYS = 5
_LENGTH = r"(phases\.\w+\.)?num_steps|num_epochs"
_BATCH = r"(phases\.\w+\.)?batch_size"
# Names in other libraries, with patterns of the keys that have their meaning here.
_OTHER_NAMES = {
    "lr": r"(optimizer\.)?peak_learning_rate",
    "learning_rate": r"(optimizer\.)?peak_learning_rate",
    "max_steps": _LENGTH,
    "epochs": _LENGTH,
    "batch": _BATCH,
    "batch_size": _BATCH,
}


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Return the end of an error message about an unknown key: the keys that could be meant.

    Args:
      key: the dotted key.
      keys: all dotted keys of the config.

    >>> unknown_key("lr", ["seed", "optimizer.peak_learning_rate"])
    ': no such key, but there is optimizer.peak_learning_rate'
    """
    keys = list(keys)
    if inside := [other for other in keys if other.startswith(f"{key}.")]:
        return f" is a section; its keys are {_first(inside)}"
    section, _, name = key.rpartition(".")
    close = _same_meaning(name, keys, f"{section}." if section else "")
    close = close or _same_meaning(name, keys)
    close = close or [other for other in keys if other.rpartition(".")[2] == name]
    if close:
        close.sort(key=lambda other: -_similarity(key, other))
        return f": no such key, but there is {_first(close)}"
    scores = {
        other: max(_similarity(key, other), _similarity(name, other.rpartition(".")[2]))
        for other in keys
    }
    close = sorted((other for other in keys if scores[other] >= 0.6), key=lambda x: -scores[x])
    if close:
        return f": no such key; nearest: {', '.join(close[:_MOST_KEYS])}"
    if len(keys) <= _MOST_KEYS:
        return f": no such key; there are: {', '.join(sorted(keys))}"
    return ": no such key; `bert-jax keys` lists all keys"


def _same_meaning(name: str, keys: Iterable[str], section: str = "") -> list[str]:
    """Return the keys of a section that another library calls `name`."""
    pattern = re.compile(_OTHER_NAMES.get(name, r"(?!)"))
    inside = [key.removeprefix(section) for key in keys if key.startswith(section)]
    return [section + key for key in inside if pattern.fullmatch(key)]


def _first(keys: Sequence[str]) -> str:
    shown = ", ".join(keys[:_MOST_KEYS])
    more = len(keys) - _MOST_KEYS
    return f"{shown} and {more} more (`bert-jax keys` lists them)" if more > 0 else shown


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def differences(stored: Any, current: Any, path: str = "") -> list[str]:
    """One line for every value in which two nested dicts disagree."""
    if isinstance(stored, dict) and isinstance(current, dict):
        lines = []
        for key in sorted(stored.keys() | current.keys()):
            name = f"{path}.{key}" if path else str(key)
            lines += differences(stored.get(key), current.get(key), name)
        return lines
    return [] if stored == current else [f"{path}: {stored!r} -> {current!r}"]
