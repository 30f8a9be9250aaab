"""The words that lose marks when accents are stripped: in many scripts marks are vowels."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from itertools import islice

from bert_jax.data.tokenizer_json import Kind

WARNED_SHARE = 0.1
_DOCUMENT_CHARACTERS = 2_000
_TOTAL_CHARACTERS = 1 << 22
_SAMPLED_DOCUMENTS = 200
_MOST_EXAMPLES = 3


class MarkedWords:
    """The distinct words of a sample of a text, and the ones among them that would lose marks.

    The sample is the first 2,000 characters of every document, and 4 M characters in all.
    """

    def __init__(self, kind: Kind):
        """Start without words; BERT's normalizer strips fewer marks than SentencePiece's does."""
        self._marks = ("Mn",) if kind == "wordpiece" else ("Mn", "Mc", "Me")
        self._left = _TOTAL_CHARACTERS
        self._words: set[str] = set()

    def add(self, document: str) -> None:
        """Take the words of a document into the sample, until the sample is full."""
        if self._left > 0:
            sample = document[:_DOCUMENT_CHARACTERS]
            self._left -= len(sample)
            self._words.update(sample.lower().split())

    def warning(self) -> str | None:
        """Return sentences for the user if more than a tenth of the words lose marks, else None."""
        marked = sorted(word for word in self._words if self._stripped(word) != _composed(word))
        share = len(marked) / max(1, len(self._words))
        if share <= WARNED_SHARE:
            return None
        examples = ", ".join(
            f"{w!r} becomes {self._stripped(w)!r}" for w in marked[:_MOST_EXAMPLES]
        )
        return (
            f"{len(marked):,} of {len(self._words):,} distinct words ({share:.1%}) lose accents, "
            f"vowel signs or voicing marks, so that different words may become one: {examples}. "
            "A tokenizer of `bert-jax train-tokenizer --keep-accents` lower-cases and keeps them."
        )

    def _stripped(self, word: str) -> str:
        if word.isascii():
            return word
        parts = unicodedata.normalize("NFD", word)
        kept = (each for each in parts if unicodedata.category(each) not in self._marks)
        return _composed("".join(kept))


def _composed(word: str) -> str:
    return unicodedata.normalize("NFC", word)


def marks_warning(kind: Kind, documents: Iterable[str]) -> str | None:
    """Return the warning of the first 200 of `documents`, None if few of their words lose marks."""
    marked = MarkedWords(kind)
    for document in islice(documents, _SAMPLED_DOCUMENTS):
        marked.add(document)
    return marked.warning()
