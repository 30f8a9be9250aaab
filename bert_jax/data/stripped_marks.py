"""Warn about words that lose marks when accents are stripped: in many scripts marks are vowels."""

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
    """Counts the distinct words of a text sample that would lose marks.

    The sample is the first 2,000 characters of every document, up to 4 M characters in total.
    """

    def __init__(self, kind: Kind):
        """Choose the marks: BERT's normalizer strips fewer than SentencePiece's."""
        self._marks = ("Mn",) if kind == "wordpiece" else ("Mn", "Mc", "Me")
        self._left = _TOTAL_CHARACTERS
        self._words: set[str] = set()

    def add(self, document: str) -> None:
        """Add the words of a document to the sample, unless it is full."""
        if self._left > 0:
            sample = document[:_DOCUMENT_CHARACTERS]
            self._left -= len(sample)
            self._words.update(sample.lower().split())

    def warning(self) -> str | None:
        """Return a warning if more than a tenth of the words lose marks, else None."""
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
            "To lower-case and keep them, train the tokenizer with `bert-jax train-tokenizer "
            "--keep-accents`."
        )

    def _stripped(self, word: str) -> str:
        if word.isascii():
            return word
        parts = unicodedata.normalize("NFD", word)
        kept = (char for char in parts if unicodedata.category(char) not in self._marks)
        return _composed("".join(kept))


def _composed(word: str) -> str:
    return unicodedata.normalize("NFC", word)


def marks_warning(kind: Kind, documents: Iterable[str]) -> str | None:
    """Return a warning if many words of the first 200 documents lose marks, else None."""
    marked = MarkedWords(kind)
    for document in islice(documents, _SAMPLED_DOCUMENTS):
        marked.add(document)
    return marked.warning()
