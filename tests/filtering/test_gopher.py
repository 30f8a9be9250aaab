"""Check the Gopher rules on texts whose values are easy to compute by hand."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bert_jax.filtering.gopher import GopherQuality, check_gopher_quality
from bert_jax.filtering.repetition import GopherRepetition, check_gopher_repetition

from .edited import random_text

# This text has 13 words, 8 of which are stop words.
PROSE = "the quick brown fox and that lazy dog have to be with us "
RULES = GopherQuality()


def failed(text: str) -> str:
    finding = check_gopher_quality(text, RULES)
    return "" if finding is None else f"{finding.rule}: {finding.detail}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PROSE * 4, ""),
        (PROSE * 3, "gopher.min_words: 39, at least 50"),
        ("the and " * 50_001, "gopher.max_words: 100,002, at most 100,000"),
        ("a " * 40 + PROSE, "gopher.min_word_length: 1.58, at least 3"),
        ("the and " + "internationalization " * 50, "gopher.max_word_length: 19.3, at most 10"),
        (PROSE * 4 + "# # # # # #", "gopher.hash_symbols: 0.103, at most 0.1"),
        (PROSE * 4 + "# # # # #", ""),
        (PROSE * 4 + "oh... no… oh... no... oh... ah…", "gopher.ellipses: 0.103, at most 0.1"),
        ("\n\n".join(["• " + PROSE, "- " + PROSE] * 2), "gopher.bullet_lines: 1, at most 0.9"),
        ("\n".join([PROSE, *["- " + PROSE] * 4]), ""),
        ("\n".join([PROSE * 2 + "...", PROSE * 2, PROSE * 2 + "… "]), "gopher.ellipsis_lines: "),
        (PROSE * 4 + "2024 " * 14, "gopher.alphabetic_words: 0.788, at least 0.8"),
        (PROSE * 4 + "2024 " * 13, ""),
        ("The fox runs under tall green trees " * 8, "gopher.stop_words: 1, at least 2"),
    ],
)
def test_quality(text: str, expected: str) -> None:
    assert failed(text).startswith(expected) and bool(expected) == bool(failed(text))


def test_limits_can_be_changed() -> None:
    assert check_gopher_quality(PROSE, replace(RULES, min_words=13)) is None
    assert check_gopher_quality(PROSE, replace(RULES, min_words=14)) is not None


def repetition(text: str, **limits: object) -> str:
    finding = check_gopher_repetition(text, replace(GopherRepetition(), **limits))
    return "" if finding is None else f"{finding.rule}: {finding.detail}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Two of the five lines are repetitions of "b".
        ("a1\nb\nb\nb\nc1", "gopher.duplicate_lines: 0.4, at most 0.3"),
        # The last of the three paragraphs is a duplicate.
        ("one\ntwo\n\nthree\n\nthree", "gopher.duplicate_paragraphs: 0.333, at most 0.3"),
        # One of the four lines is a duplicate; it has 9 of the 42 characters.
        (
            "long line\nlong line\nx 1 y\nanother one here",
            "gopher.duplicate_line_characters: 0.214, at most 0.2",
        ),
        # "ab cd" occurs twice and accounts for 8 of the 30 characters, excluding white space.
        ("ab cd efghijkl ab cd mnopqrstuvwxyz", "gopher.top_2_gram: 0.267, at most 0.2"),
    ],
)
def test_repetition(text: str, expected: str) -> None:
    assert repetition(text) == expected


def test_overlapping_ngrams_are_counted_once() -> None:
    """Repeat words 1 to 6 as words 7 to 12, which form two overlapping 5-grams."""
    text = "a b c d e f a b c d e f g h i j k l m n o p q r s t"
    limits = {"max_top_ngrams": (), "max_duplicate_ngrams": ((5, 0.1),)}
    # The fraction is 6 / 26.
    assert repetition(text, **limits) == "gopher.duplicate_5_grams: 0.231, at most 0.1"


def brute_force(words: list[str], length: int) -> tuple[float, float]:
    """Return the fractions of characters in the top n-gram and in duplicate n-grams."""
    ngrams = [tuple(words[start : start + length]) for start in range(len(words) - length + 1)]
    counts = Counter(ngrams)
    most = max(counts.values())
    top = max(most * len("".join(each)) for each in counts if counts[each] == most)
    covered: set[int] = set()
    for start, ngram in enumerate(ngrams):
        if ngram in ngrams[:start]:
            covered.update(range(start, start + length))
    total = len("".join(words))
    return (
        top / total if most > 1 else 0.0,
        sum(len(words[place]) for place in covered) / total,
    )


@pytest.mark.parametrize("length", [2, 4, 5, 10])
def test_fractions_equal_those_of_a_plain_loop(length: int) -> None:
    random = np.random.default_rng(length)
    for _ in range(10):
        words = random_text(random, 40).split()
        for _ in range(6):
            start, place = random.integers(0, 30, 2)
            words[place : place + 8] = words[start : start + 8]
        text, (top, duplicate) = " ".join(words), brute_force(words, length)
        none: dict[str, object] = {"max_top_ngrams": (), "max_duplicate_ngrams": ()}
        for name, value in (("max_top_ngrams", top), ("max_duplicate_ngrams", duplicate)):
            assert repetition(text, **none | {name: ((length, value + 1e-9),)}) == ""
            if value:
                assert repetition(text, **none | {name: ((length, value - 1e-9),)}) != ""
