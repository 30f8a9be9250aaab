"""Words of a text in the characters of the text, as its tokenizer tells them apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.data.tokenizer import Tokenizer


class Word(NamedTuple):
    """A word or punctuation mark: characters `start` to `end` of a text are its own."""

    text: str
    start: int
    end: int


def split_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Word]]:
    """The words of each text, in order, with the accents that stand behind their last letter."""
    return [
        [
            Word(text[start:end], start, end)
            for start, last in offsets.tolist()
            for end in (behind_marks(text, last),)
        ]
        for text, offsets in zip(texts, tokenizer.word_offsets(texts), strict=True)
    ]


def find_words(tokenizer: Tokenizer, text: str, wanted: str) -> list[tuple[int, int]]:
    """Where one or several words in a row stand in a text: characters, from the first to behind.

    Words are the same if the tokenizer makes them so: an uncased one finds "python" in "Python".
    """
    words, sought = split_words(tokenizer, [text, wanted])
    ours, theirs = ([tokenizer.normalize(word.text) for word in each] for each in (words, sought))
    count = len(theirs)
    return [
        (words[first].start, words[first + count - 1].end)
        for first in range(len(ours) - count + 1)
        if count and ours[first : first + count] == theirs
    ]


def behind_marks(text: str, end: int) -> int:
    """`end`, or behind the accents of the letter before it, which uncased tokenizers strip."""
    while end < len(text) and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end
