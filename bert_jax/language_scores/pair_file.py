"""Read minimal pairs: sentences with one grammatical difference, only one of them acceptable."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bert_jax.hashing import permuted
from bert_jax.json_files import json_kind
from bert_jax.labeled_data.tables import json_records
from bert_jax.storage.urls import parse_location
from bert_jax.text.files import JSON_LINES_SUFFIXES, content_suffix, expand_inputs

# The fields of BLiMP's files (Warstadt et al. 2020) that are read; other fields are ignored.
GOOD, BAD, PARADIGM, PHENOMENON = "sentence_good", "sentence_bad", "UID", "linguistics_term"
# This key makes the random sample of pairs the same every time.
_SAMPLE = 0


@dataclass(frozen=True)
class MinimalPair:
    """An acceptable and an unacceptable sentence.

    Attributes:
      good: the acceptable sentence.
      bad: the unacceptable sentence.
      paradigm: the name of the pattern from which the pair was made, such as "passive_1".
      phenomenon: the name of the phenomenon that the paradigm tests, such as "argument_structure".
      location: where the pair comes from, as "file:line".
    """

    good: str
    bad: str
    paradigm: str
    phenomenon: str
    location: str


def read_minimal_pairs(path: str | os.PathLike[str]) -> list[MinimalPair]:
    """Read minimal pairs from JSON Lines with the fields of BLiMP.

    Args:
      path: a file (plain or compressed), a directory of such files, or a pattern.

    Raises:
      ValueError: there is no such file, a line is not a JSON object or lacks a field, a paradigm
        belongs to two phenomena, or no pair has two different sentences. The message gives the file
        and line.
    """
    files = list(map(parse_location, expand_inputs([os.fspath(parse_location(path))])))
    wrong = [file for file in files if content_suffix(file) not in JSON_LINES_SUFFIXES]
    if wrong:
        raise ValueError(
            f"{wrong[0]}: minimal pairs are read from JSON Lines. Use a file whose name ends in "
            f"{', '.join(JSON_LINES_SUFFIXES)}, optionally compressed."
        )
    pairs = [_pair(record, location) for file in files for location, record in json_records(file)]
    if not pairs:
        raise ValueError(f"{path}: contains no minimal pairs. Use a file with one pair per line.")
    if all(pair.good == pair.bad for pair in pairs):
        raise ValueError(
            f"{pairs[0].location}: the two sentences of every pair are identical. Check that "
            f"{GOOD} and {BAD} are different columns of the original data."
        )
    phenomena: dict[str, MinimalPair] = {}
    for pair in pairs:
        first = phenomena.setdefault(pair.paradigm, pair)
        if first.phenomenon != pair.phenomenon:
            raise ValueError(
                f"{pair.location}: the paradigm {pair.paradigm!r} belongs to the phenomenon "
                f"{pair.phenomenon!r}, but to {first.phenomenon!r} at {first.location}. Assign "
                "each paradigm to one phenomenon."
            )
    return pairs


def sample_pairs(pairs: Sequence[MinimalPair], max_pairs: int | None) -> list[MinimalPair]:
    """Return at most `max_pairs` pairs of each paradigm, or all pairs if it is None.

    The sample is random but always the same. The pairs keep their order.
    """
    if max_pairs is None:
        return list(pairs)
    numbers: dict[str, list[int]] = {}
    for number, pair in enumerate(pairs):
        numbers.setdefault(pair.paradigm, []).append(number)
    chosen = [
        np.array(members)[permuted(np.arange(min(max_pairs, len(members))), len(members), _SAMPLE)]
        for members in numbers.values()
    ]
    return [pairs[number] for number in np.sort(np.concatenate(chosen))]


def _pair(record: dict[str, Any], location: str) -> MinimalPair:
    good, bad = (_text(record, name, location) for name in (GOOD, BAD))
    paradigm, phenomenon = (_text(record, name, location) for name in (PARADIGM, PHENOMENON))
    return MinimalPair(good, bad, paradigm, phenomenon, location)


def _text(record: dict[str, Any], name: str, location: str) -> str:
    if name not in record:
        fields = ", ".join(map(repr, record)) or "none"
        raise ValueError(
            f"{location}: no field {name!r}; the fields are {fields}. A minimal pair needs "
            f"{GOOD}, {BAD}, {PARADIGM} and {PHENOMENON}."
        )
    value = record[name]
    if not isinstance(value, str):
        raise ValueError(f"{location}: {name} is {json_kind(value)}. Write a string.")
    if not value.strip():
        raise ValueError(f"{location}: {name} is empty. Write at least one word.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{location}: {name} has a lone surrogate at character {error.start}, which is not "
            "valid Unicode. Remove it."
        ) from None
    return value
