"""Apply the quality rules of Gopher (Rae et al. 2021, section A.1.1)."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.filtering.findings import Finding, above, below

_BULLETS = ("•", "-")
_ELLIPSES = ("...", "…")


@dataclass(frozen=True)
class GopherQuality:
    """The quality rules of Gopher, which remove text that is not English prose.

    Words are separated by white space, and empty lines do not count. The defaults are the paper's
    values. The paper does not define bullet points; here, these are • and -.

    Attributes:
      min_words: the minimum number of words.
      max_words: the maximum number of words.
      min_word_length: the minimum mean length of a word in characters.
      max_word_length: the maximum mean length of a word in characters.
      max_symbol_ratio: the maximum number of hash symbols per word, and of ellipses per word.
      max_bullet_lines: the maximum fraction of lines that begin with a bullet point.
      max_ellipsis_lines: the maximum fraction of lines that end with an ellipsis.
      min_alphabetic_words: the minimum fraction of words with at least one letter.
      stop_words: common words that a text must contain.
      min_stop_words: the minimum number of different stop words.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_word_length: float = 3.0
    max_word_length: float = 10.0
    max_symbol_ratio: float = 0.1
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_alphabetic_words: float = 0.8
    stop_words: tuple[str, ...] = ("the", "be", "to", "of", "and", "that", "have", "with")
    min_stop_words: int = 2


def check_gopher_quality(text: str, rules: GopherQuality) -> Finding | None:
    """Return the first rule that a text fails, or None if it passes all of them."""
    words = text.split()
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    return (
        _check_words(words, rules)
        or _check_symbols(text, len(words), rules)
        or _check_lines(lines, rules)
        or _check_vocabulary(words, rules)
    )


def _check_words(words: list[str], rules: GopherQuality) -> Finding | None:
    count = len(words)
    return (
        below("gopher.min_words", count, rules.min_words)
        or above("gopher.max_words", count, rules.max_words)
        or below("gopher.min_word_length", _mean_length(words), rules.min_word_length)
        or above("gopher.max_word_length", _mean_length(words), rules.max_word_length)
    )


def _mean_length(words: list[str]) -> float:
    return sum(map(len, words)) / max(1, len(words))


def _check_symbols(text: str, num_words: int, rules: GopherQuality) -> Finding | None:
    hashes = text.count("#") / max(1, num_words)
    ellipses = sum(map(text.count, _ELLIPSES)) / max(1, num_words)
    return above("gopher.hash_symbols", hashes, rules.max_symbol_ratio) or above(
        "gopher.ellipses", ellipses, rules.max_symbol_ratio
    )


def _check_lines(lines: list[str], rules: GopherQuality) -> Finding | None:
    bullets = sum(line.startswith(_BULLETS) for line in lines) / max(1, len(lines))
    ellipses = sum(line.endswith(_ELLIPSES) for line in lines) / max(1, len(lines))
    return above("gopher.bullet_lines", bullets, rules.max_bullet_lines) or above(
        "gopher.ellipsis_lines", ellipses, rules.max_ellipsis_lines
    )


def _check_vocabulary(words: list[str], rules: GopherQuality) -> Finding | None:
    vocabulary = {word.lower() for word in words}
    found = sum(word in vocabulary for word in rules.stop_words)
    alphabetic = sum(word.isalpha() or any(map(str.isalpha, word)) for word in words)
    return below(
        "gopher.alphabetic_words", alphabetic / max(1, len(words)), rules.min_alphabetic_words
    ) or below("gopher.stop_words", found, rules.min_stop_words)
