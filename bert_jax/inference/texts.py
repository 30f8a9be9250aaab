"""Texts as users give them: checked, and as token sequences cut to a length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from bert_jax.data.finetuning.features import Features, sequences_of
from bert_jax.data.finetuning.truncation import cut_pair
from bert_jax.data.tokenizer import Tokenizer

Text = str | tuple[str, str]


class UnusableText(ValueError):
    """Some of several texts cannot be used: `reasons`, by their places among them.

    index, reason: those of the first, which the message tells.
    """

    def __init__(self, reasons: Mapping[int, str], count: int):
        self.reasons = dict(sorted(reasons.items()))
        self.index, self.reason = next(iter(self.reasons.items()))
        told = self.reason if count == 1 else f"text {self.index} of {count}: {self.reason}"
        super().__init__(told)


def refuse(reasons: Mapping[int, str], count: int) -> None:
    """Raises `UnusableText` if there are any, of `count` texts."""
    if reasons:
        raise UnusableText(reasons, count)


class CutTexts(NamedTuple):
    """Sequences of texts, and of each whether something of it had to be left out."""

    features: Features
    truncated: list[bool]


def listed(given: Any, expected: str = "a string or a list of strings") -> list[Any]:
    """What a list holds, another sequence or an array; ValueError saying what was `expected`.

    What else can be gone through is not meant so: of a dict the keys, of bytes numbers.
    """
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray, memoryview)):
        return list(given)
    values = given.tolist() if hasattr(given, "tolist") else None  # NumPy's arrays, pandas' columns
    if not isinstance(values, list):
        raise ValueError(f"expected {expected}, got a value of type {type(given).__name__}")
    return values


def pairs_of(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    """The pair of two strings, or those of two lists. ValueError if they are not alike."""
    if isinstance(first, str) and isinstance(second, str):
        return [(first, second)]
    expected = "two strings, or two lists of as many strings"
    if isinstance(first, str) or isinstance(second, str):
        raise ValueError(f"expected {expected}, got one string")
    firsts, seconds = listed(first, expected), listed(second, expected)
    if len(firsts) != len(seconds):
        raise ValueError(f"expected {expected}, got {len(firsts)} and {len(seconds)}")
    return list(zip(firsts, seconds, strict=True))


def is_whole(number: object) -> bool:
    """Whether it is a whole number by its type: of Python's or of NumPy's."""
    return isinstance(number, Integral)


def check_strings(texts: Sequence[Sequence[object]]) -> None:
    """Refuses what is no Unicode text among the parts of each text: `UnusableText`."""
    refuse(_no_strings(texts), len(texts))


def _no_strings(texts: Sequence[Sequence[object]]) -> dict[int, str]:
    found = {index: next(filter(None, map(_fault, parts)), "") for index, parts in enumerate(texts)}
    return {index: reason for index, reason in found.items() if reason}


def _fault(part: object) -> str:
    """Why it is no Unicode text; "" if it is."""
    if not isinstance(part, str):
        return f"of type {type(part).__name__}, expected a string"
    try:
        part.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"a lone surrogate at character {error.start}, which is no Unicode text"
    return ""


def cut_texts(tokenizer: Tokenizer, texts: Sequence[Text], max_length: int) -> CutTexts:
    """Sequences `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]` of at most `max_length`.

    Texts lose their end, pairs the end of the longer one first: the ids of Hugging Face's
    `BertTokenizerFast(first, second, truncation=True, max_length=max_length)`.

    Raises:
      UnusableText: not a string or a pair of them, or no Unicode text.
    """
    no_texts = {
        index: f"of type {type(text).__name__}, expected a string or a tuple (first, second)"
        for index, text in enumerate(texts)
        if not isinstance(text, (str, tuple))
    }
    no_pairs = {
        index: f"a tuple of {len(text)}, expected (first, second)"
        for index, text in enumerate(texts)
        if isinstance(text, tuple) and len(text) != 2
    }
    no_strings = _no_strings([text if isinstance(text, tuple) else (text,) for text in texts])
    refuse(no_pairs | no_strings | no_texts, len(texts))
    pairs = [text if isinstance(text, tuple) else (text, None) for text in texts]
    flat = [part for pair in pairs for part in pair if part is not None]
    encoded = iter(tokenizer.encode_batch(flat))
    firsts: list[Sequence[int]] = []
    seconds: list[Sequence[int] | None] = []
    truncated = []
    for pair in pairs:
        first: Sequence[int] = next(encoded)
        second: Sequence[int] | None = None if pair[1] is None else next(encoded)
        whole = len(first) + len(second or ())
        if second is None:
            first = first[: max_length - 2]
        else:
            first, second = cut_pair(first, second, max_length - tokenizer.specials_of_pair)
        firsts.append(first)
        seconds.append(second)
        truncated.append(len(first) + len(second or ()) < whole)
    return CutTexts(Features(sequences_of(tokenizer, firsts, seconds)), truncated)
