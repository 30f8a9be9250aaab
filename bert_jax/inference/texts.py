"""Texts as users give them: checked, and as token sequences cut to a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.data.finetuning.features import Features, sequences_of
from bert_jax.data.finetuning.truncation import cut_pair
from bert_jax.data.tokenizer import Tokenizer

Text = str | tuple[str, str]


class UnusableText(ValueError):
    """One of several texts cannot be used: `index`, its place among them, and the `reason`."""

    def __init__(self, index: int, count: int, reason: str):
        super().__init__(reason if count == 1 else f"text {index} of {count}: {reason}")
        self.index = index
        self.reason = reason


class CutTexts(NamedTuple):
    """Sequences of texts, and of each whether something of it had to be left out."""

    features: Features
    truncated: list[bool]


def pairs_of(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
    """The pair of two strings, or those of two lists. ValueError if they are not alike."""
    if isinstance(first, str) and isinstance(second, str):
        return [(first, second)]
    if isinstance(first, str) or isinstance(second, str) or len(first) != len(second):
        raise ValueError("expected two strings, or two lists of as many strings")
    return list(zip(first, second, strict=True))


def check_strings(texts: Sequence[Sequence[object]]) -> None:
    """Refuses what is no Unicode text among the parts of each text: `UnusableText`."""
    for index, parts in enumerate(texts):
        for part in parts:
            if not isinstance(part, str):
                kind = type(part).__name__
                raise UnusableText(index, len(texts), f"of type {kind}, expected a string")
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as error:
                raise UnusableText(
                    index,
                    len(texts),
                    f"a lone surrogate at character {error.start}, which is no Unicode text",
                ) from None


def cut_texts(tokenizer: Tokenizer, texts: Sequence[Text], max_length: int) -> CutTexts:
    """Sequences `[CLS] text [SEP]` or `[CLS] first [SEP] second [SEP]` of at most `max_length`.

    Texts lose their end, pairs the end of the longer one first: the ids of Hugging Face's
    `BertTokenizerFast(first, second, truncation=True, max_length=max_length)`.

    Raises:
      UnusableText: not a string or a pair of them, or no Unicode text.
    """
    check_strings([text if isinstance(text, tuple) else (text,) for text in texts])
    pairs = [_pair(text, index, len(texts)) for index, text in enumerate(texts)]
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


def _pair(text: Text, index: int, count: int) -> tuple[str, str | None]:
    if isinstance(text, tuple):
        if len(text) != 2:
            raise UnusableText(index, count, f"a tuple of {len(text)}, expected (first, second)")
        return text
    return text, None
