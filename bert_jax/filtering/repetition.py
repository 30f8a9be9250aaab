"""Apply the repetition rules of Gopher (Rae et al. 2021, section A.1.1 and table A1)."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bert_jax.filtering.findings import Finding, above
from bert_jax.filtering.words import Hashes, ngram_hashes

_PARAGRAPHS = re.compile(r"\n{2,}")
_LINES = re.compile(r"\n+")
NgramLimits = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class GopherRepetition:
    """The repetition rules of Gopher. The defaults are the limits in table A1.

    Lines, paragraphs and n-grams are duplicates if they occur earlier in the text. Words are
    separated by white space, which does not count among the characters of an n-gram.

    Attributes:
      max_duplicate_lines: the maximum fraction of lines that are duplicates.
      max_duplicate_paragraphs: the maximum fraction of paragraphs that are duplicates.
      max_duplicate_line_characters: the maximum fraction of characters in duplicate lines.
      max_duplicate_paragraph_characters: the maximum fraction of characters in duplicate
        paragraphs.
      max_top_ngrams: pairs of a length and the maximum fraction of characters in the occurrences
        of the most frequent n-gram of this length.
      max_duplicate_ngrams: pairs of a length and the maximum fraction of characters in duplicate
        n-grams of this length. Characters in overlapping n-grams are counted once.
    """

    max_duplicate_lines: float = 0.3
    max_duplicate_paragraphs: float = 0.3
    max_duplicate_line_characters: float = 0.2
    max_duplicate_paragraph_characters: float = 0.2
    max_top_ngrams: NgramLimits = ((2, 0.20), (3, 0.18), (4, 0.16))
    max_duplicate_ngrams: NgramLimits = (
        *((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10)),
    )


def check_gopher_repetition(text: str, rules: GopherRepetition) -> Finding | None:
    """Return the first rule that a text fails, or None if it passes all of them."""
    return _check_parts(text, rules) or _check_ngrams(text, rules)


def _check_parts(text: str, rules: GopherRepetition) -> Finding | None:
    lines, line_characters = _duplicates(_LINES.split(text), len(text))
    paragraphs, paragraph_characters = _duplicates(_PARAGRAPHS.split(text), len(text))
    return (
        above("gopher.duplicate_lines", lines, rules.max_duplicate_lines)
        or above("gopher.duplicate_paragraphs", paragraphs, rules.max_duplicate_paragraphs)
        or above(
            "gopher.duplicate_line_characters", line_characters, rules.max_duplicate_line_characters
        )
        or above(
            "gopher.duplicate_paragraph_characters",
            paragraph_characters,
            rules.max_duplicate_paragraph_characters,
        )
    )


def _duplicates(parts: list[str], num_characters: int) -> tuple[float, float]:
    """Return the fraction of parts that occurred before, and the fraction of characters in them."""
    unique = set(parts)
    if len(unique) == len(parts):
        return 0.0, 0.0
    characters = sum(map(len, parts)) - sum(map(len, unique))
    return 1 - len(unique) / len(parts), characters / max(1, num_characters)


def _check_ngrams(text: str, rules: GopherRepetition) -> Finding | None:
    words = text.split()
    total = max(1, sum(map(len, words)))
    numbers: dict[str, int] = {}
    ids = np.array([numbers.setdefault(word, len(numbers)) for word in words], np.uint64)
    ends = np.cumsum([0, *map(len, words)])
    for length, limit in rules.max_top_ngrams:
        fraction = _top_characters(ids, ends, length) / total
        if finding := above(f"gopher.top_{length}_gram", fraction, limit):
            return finding
    for length, limit in rules.max_duplicate_ngrams:
        fraction = _duplicate_characters(ids, ends, length) / total
        if finding := above(f"gopher.duplicate_{length}_grams", fraction, limit):
            return finding
    return None


def _top_characters(ids: Hashes, ends: NDArray[np.int_], length: int) -> int:
    """Return the number of characters in all occurrences of the most frequent n-gram.

    Among equally frequent n-grams, the longest one counts. An n-gram that occurs once is not a
    repetition.
    """
    ngrams = ngram_hashes(ids, length)
    if not len(ngrams):
        return 0
    _, first, counts = np.unique(ngrams, return_index=True, return_counts=True)
    most = int(counts.max())
    if most == 1:
        return 0
    top = first[counts == most]
    return most * int((ends[top + length] - ends[top]).max())


def _duplicate_characters(ids: Hashes, ends: NDArray[np.int_], length: int) -> int:
    """Return the number of characters in repeated n-grams, counting every character only once."""
    ngrams = ngram_hashes(ids, length)
    if not len(ngrams):
        return 0
    _, first = np.unique(ngrams, return_index=True)
    if len(first) == len(ngrams):
        return 0
    repeated = np.ones(len(ngrams), bool)
    repeated[first] = False
    # A word is covered if a repeated n-gram begins at this word or at one of the words before it.
    change = np.zeros(len(ids) + 1, np.int64)
    starts = np.flatnonzero(repeated)
    np.add.at(change, starts, 1)
    np.add.at(change, starts + length, -1)
    covered = np.cumsum(change[:-1]) > 0
    return int(np.diff(ends)[covered].sum())
