"""Words of a text in the characters of the text, as its tokenizer tells them apart."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import BertPreTokenizer

from bert_jax.data.tokenizer import Tokenizer


class Word(NamedTuple):
    """A word or punctuation mark: characters `start` to `end` of a text are its own."""

    text: str
    start: int
    end: int


def split_words(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[Word]]:
    """The words of each text, in order, with the accents that stand behind their last letter.

    Punctuation marks are words by themselves, of SentencePiece too, whose own words have them at
    their ends: texts that are tagged word by word have them apart.
    """
    if tokenizer.kind == "sentencepiece":
        tokens = tokenizer.encode_with_offsets(texts, specials_as_text=True)
        located = [
            _split_at_punctuation(text, each.offsets)
            for text, each in zip(texts, tokens, strict=True)
        ]
    else:
        located = tokenizer.word_offsets(texts)
    return [
        [
            Word(text[start:end], start, end)
            for start, end in _with_marks(text, offsets.tolist(), split=tokenizer.splits_at_marks)
        ]
        for text, offsets in zip(texts, located, strict=True)
    ]


def _with_marks(
    text: str, spans: Sequence[tuple[int, int]], *, split: bool
) -> list[tuple[int, int]]:
    """Return the spans of words, extended by the marks that follow them.

    Args:
        split: whether spans end at marks, so that marks and the letters after them must be joined
            to their word.
    """
    found: list[tuple[int, int]] = []
    for (start, last), following in zip_longest(spans, spans[1:]):
        begin = start
        if split and found:
            begin = max(start, found[-1][1])
            if begin >= last:
                continue
            marked = _is_mark(unicodedata.normalize("NFD", text[begin - 1])[-1])
            if found[-1][1] == begin and marked and text[begin].isalpha():
                begin = found.pop()[0]
        end = behind_marks(text, last)
        found.append((begin, min(end, following[0]) if following and not split else end))
    return found


def _split_at_punctuation(text: str, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """[words, 2] as BERT's tokenizer has them, those in which one of the tokens stands."""
    split = BertPreTokenizer().pre_tokenize_str(text)
    found = np.array([span for _, span in split], np.int32).reshape(-1, 2)
    starts, ends = tokens[tokens[:, 0] < tokens[:, 1]].T
    # Tokens stand in order: a word has one if the first that ends in or behind it begins before
    # its end.
    first = np.searchsorted(ends, found[:, 0], side="right")
    begin = np.append(starts, len(text))[first]
    return found[begin < found[:, 1]]


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
    """Return the end of the marks at `end` that belong to the letter before it.

    Tokenizers strip marks or compose them with their letter: accents, vowel signs, and the vowels
    and final consonants of a Hangul syllable.
    """
    while end < len(text) and _is_mark(text[end]):
        end += 1
    return end


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc") or "\u1160" <= character <= "\u11ff"
