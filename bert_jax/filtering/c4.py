"""Apply the rules of C4 (Raffel et al. 2020, section 2.2).

The rules are applied in the same order as in `clean_page` in tensorflow_datasets/text/c4_utils.py,
which produced the published data set.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bert_jax.filtering.findings import Finding, below

_TERMINAL = (".", "?", "!", '"')
_ELLIPSIS = "..."
_LOREM_IPSUM = "lorem ipsum"
_CITATIONS = re.compile(r"\[\d*\]|\[edit\]|\[citation needed\]")
# A run of terminal punctuation, possibly with quotation marks or brackets, at the end of a word.
_SENTENCE_END = re.compile(r"[.!?]+[\"”’')\]]*(?=\s|$)")


@dataclass(frozen=True)
class C4:
    """The rules of C4: drop lines that are not sentences, then texts with too few sentences.

    A line is kept if it ends in terminal punctuation, has enough words, has no overlong word, and
    contains neither "javascript" nor a phrase from a legal notice. Citation markers, such as [1],
    are removed. The defaults are the published values. C4's list of obscene words and its removal
    of repeated three-sentence spans are left out.

    Attributes:
      min_words_per_line: the minimum number of words in a line.
      max_word_length: the maximum number of characters in a word.
      min_sentences: the minimum number of sentences in the lines that are kept.
      policy_phrases: phrases of legal notices, in lower case.
    """

    min_words_per_line: int = 5
    max_word_length: int = 1000
    min_sentences: int = 3
    policy_phrases: tuple[str, ...] = (
        *("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies"),
        "use cookies",
    )


def clean_c4(text: str, rules: C4) -> str:
    """Return those lines of a text that C4 keeps, without citation markers.

    Lines that cause `check_c4` to reject the whole text are kept too.
    """
    lines = (line.strip() for line in text.splitlines())
    kept = (
        _CITATIONS.sub("", line)
        for line in lines
        if len(line) <= rules.max_word_length
        or max(map(len, line.split())) <= rules.max_word_length
    )
    return "\n".join(line for line in kept if _is_kept(line, rules)).strip()


def _is_kept(line: str, rules: C4) -> bool:
    if not line.endswith(_TERMINAL) or line.endswith(_ELLIPSIS):
        return False
    if len(line.split()) < rules.min_words_per_line:
        return False
    folded = line.lower()
    if _LOREM_IPSUM in folded:
        return True
    if "javascript" in folded:
        return False
    return "{" in line or not any(phrase in folded for phrase in rules.policy_phrases)


def check_c4(text: str, rules: C4) -> Finding | None:
    """Return the first rule for whole texts that a cleaned text fails, or None if it passes all."""
    if _LOREM_IPSUM in text.lower():
        return Finding("c4.lorem_ipsum", "contains “lorem ipsum”")
    if "{" in text:
        return Finding("c4.curly_bracket", "contains a curly bracket")
    sentences = sum(len(_SENTENCE_END.findall(line)) for line in text.split("\n"))
    return below("c4.sentences", sentences, rules.min_sentences)
