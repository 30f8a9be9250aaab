"""Check values that occur in both commands and configs, and build hints for error messages."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

NUM_SEEDS = 1 << 32  # JAX makes a random key from 32 bits.


def check_seed(seed: int, name: str = "seed") -> None:
    """Check that a seed is between 0 and 2^32 - 1.

    Args:
      seed: the user's seed.
      name: the option or config key that contains it.

    Raises:
      ValueError: the seed is out of range.
    """
    if not 0 <= seed < NUM_SEEDS:
        raise ValueError(f"{name}={seed}: must be between 0 and 2^32 - 1")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Check that a value is one of the valid choices.

    Args:
      name: the parameter or config key that contains the value.
      value: the user's value.
      choices: the valid values.

    Raises:
      ValueError: the value is not one of the choices.
    """
    if value not in choices:
        expected = ", ".join(map(repr, choices))
        raise ValueError(f"{name}={value!r}: expected one of {expected}.")


def check_list(name: str, values: Sequence[str]) -> None:
    """Check that a value is a list of strings, not a single string.

    Args:
      name: the parameter or config key that contains the value.
      values: the user's value.

    Raises:
      ValueError: the value is a string.
    """
    if isinstance(values, str):
        raise ValueError(f"{name}={values!r}: expected a list, got a string. Use [{values!r}].")


_LOAD_CONFIG = "Load one with `load_config`, for example from a recipe."


def check_config(config: object, cls: type, fix: str = _LOAD_CONFIG) -> None:
    """Check that a function was called with the kind of config that it expects.

    Args:
      config: the caller's argument, which may be the name of a recipe or another kind of config.
      cls: the expected dataclass, such as PretrainConfig.
      fix: a sentence that explains how to get such a config.

    Raises:
      ValueError: the value is not an instance of `cls`.
    """
    if not isinstance(config, cls):
        value = repr(config) if isinstance(config, str) else f"a {type(config).__name__}"
        article = "an" if cls.__name__[0] in "AEIOU" else "a"
        raise ValueError(f"config: expected {article} {cls.__name__}, got {value}. {fix}")


def check_label_names(labels: Sequence[str], name: str = "labels") -> None:
    """Check that label names are distinct, not blank and safe to write to a prediction file.

    Args:
      labels: the names, in label order.
      name: the option or config key that contains them.

    Raises:
      ValueError: a name is blank or repeated, or contains a tab or a line break.
    """
    if isinstance(labels, str) or len(set(labels)) != len(labels):
        raise ValueError(f"{name}={labels!r}: expected a tuple of distinct strings")
    if any(not label.strip() for label in labels):
        raise ValueError(
            f"{name}={tuple(labels)!r}: contains an empty name. Give every label a name."
        )
    if invalid := [label for label in labels if set(label) & set("\t\r\n")]:
        raise ValueError(
            f"{name}: {invalid[0]!r} contains a tab or a line break, which would corrupt "
            "prediction files. Rename the label."
        )


@contextmanager
def renamed_in_errors(names: Mapping[str, str]) -> Iterator[None]:
    """Replace parameter names in the messages of ValueErrors raised in a `with` block.

    A function's error messages name its parameters, but the user may have set an option or a config
    key instead.

    Args:
      names: a dict from each parameter name to the option or the full config key.
    """
    try:
        yield
    except ValueError as error:
        pattern = rf"(?<![\w./-])({'|'.join(map(re.escape, names))})(?![\w/-])"
        message = re.sub(pattern, lambda match: names[match[0]], str(error))
        if message == str(error):
            raise
        raise ValueError(message) from error


def nearest(name: str, candidates: Iterable[str]) -> str:
    """Return a hint that lists the candidates most similar to `name`, or all if none is similar.

    >>> nearest("pretain", ["prepare", "pretrain"])
    'nearest: pretrain, prepare'
    """
    names = list(candidates)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    return f"nearest: {', '.join(close)}" if close else f"available: {', '.join(sorted(names))}"


_MAX_KEYS = 5  # A hint lists at most this many keys.
_LENGTH = r"(phases\.\w+\.)?num_steps|num_epochs"
_BATCH = r"(phases\.\w+\.)?batch_size"
# Names used in other libraries, with patterns that match the equivalent keys in bert_jax.
_OTHER_NAMES = {
    "lr": r"(optimizer\.)?peak_learning_rate",
    "learning_rate": r"(optimizer\.)?peak_learning_rate",
    "max_steps": _LENGTH,
    "epochs": _LENGTH,
    "batch": _BATCH,
    "batch_size": _BATCH,
}


def unknown_key(key: str, keys: Iterable[str]) -> str:
    """Return the rest of an error message that begins with an unknown key.

    Args:
      key: the dotted key.
      keys: all dotted keys of the config.

    >>> unknown_key("lr", ["seed", "optimizer.peak_learning_rate"])
    ': no such key; did you mean optimizer.peak_learning_rate?'
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
        return f": no such key; did you mean {_first(close)}?"
    scores = {
        other: max(_similarity(key, other), _similarity(name, other.rpartition(".")[2]))
        for other in keys
    }
    close = sorted((other for other in keys if scores[other] >= 0.6), key=lambda x: -scores[x])
    if close:
        return f": no such key; nearest: {', '.join(close[:_MAX_KEYS])}"
    if len(keys) <= _MAX_KEYS:
        return f": no such key; available: {', '.join(sorted(keys))}"
    return ": no such key; `bert-jax keys` lists all keys"


def _same_meaning(name: str, keys: Iterable[str], section: str = "") -> list[str]:
    """Return the keys that are equivalent to a name used in other libraries.

    Args:
      name: the name used in other libraries.
      keys: all dotted keys of the config.
      section: the section to search, including its dot; "" searches the whole config.
    """
    pattern = re.compile(_OTHER_NAMES.get(name, r"(?!)"))
    inside = [key.removeprefix(section) for key in keys if key.startswith(section)]
    return [section + key for key in inside if pattern.fullmatch(key)]


def _first(keys: Sequence[str]) -> str:
    """List the first few keys, and say how many more there are."""
    listed = ", ".join(keys[:_MAX_KEYS])
    more = len(keys) - _MAX_KEYS
    return f"{listed} and {more} more (`bert-jax keys` lists them)" if more > 0 else listed


def _similarity(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def differences(stored: Any, current: Any, path: str = "") -> list[str]:
    """Return one line for each value that differs between two nested dicts."""
    if isinstance(stored, dict) and isinstance(current, dict):
        lines = []
        for key in sorted(stored.keys() | current.keys()):
            name = f"{path}.{key}" if path else str(key)
            lines += differences(stored.get(key), current.get(key), name)
        return lines
    return [] if stored == current else [f"{path}: {stored!r} -> {current!r}"]


_LARGEST_INTEGER = 2**63 - 1  # Every library accepts integers up to this one.


def check_at_least(minimum: int, section: str, **values: int) -> None:
    """Reject integers that are below `minimum` or too large for the libraries that use them.

    Args:
      minimum: the smallest valid value.
      section: the prefix of the keys in messages, such as "reporting.".
      **values: the integers, keyed by the rest of the key.

    Raises:
      ValueError: a value is out of range. The message names its key.
    """
    for name, value in values.items():
        if value < minimum:
            raise ValueError(f"{section}{name}={value}: must be at least {minimum}")
        if value > _LARGEST_INTEGER:
            raise ValueError(
                f"{section}{name}={str(value)[:30]}...: must be at most {_LARGEST_INTEGER:,}"
            )
