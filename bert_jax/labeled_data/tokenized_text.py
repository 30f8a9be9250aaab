"""Tokenize a text or a pair of texts for a model, and group the tokens into words."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bert_jax.labeled_data.features import (
    Sequences,
    build_sequences,
    check_max_length,
    truncate_pair,
)
from bert_jax.terminal import Color, colored
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.tokenizers.words import Word, split_words

# A text, or a tuple of its words.
Text = str | tuple[str, ...]


class TextWord(NamedTuple):
    """A word, a punctuation mark or a special token in a tokenized text.

    Attributes:
      text: the word as written in the text, or the special token.
      segment: 0 for the first text of a pair and 1 for the second.
      start: the index of the word's first token.
      stop: the index just past the word's last token.
    """

    text: str
    segment: int
    start: int
    stop: int


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """A text or a pair of texts in the form that a model reads. Jupyter shows its tokens in color.

    Attributes:
      text: the original text.
      second: the second text of a pair; None for a single text.
      tokens: all tokens, including `[CLS]` and `[SEP]`.
      token_ids: int32 [tokens].
      segment_ids: int32 [tokens], 0 for the first text and 1 for the second.
      offsets: int32 [tokens, 2], the character range of each token in its text; (0, 0) for `[CLS]`
        and `[SEP]`. If words were given, this is the range of the whole word.
      is_text: bool [tokens], False for the `[CLS]` and `[SEP]` tokens that enclose the texts.
      words: the words and special tokens, in order; every token belongs to one of them.
      truncated: whether a text was truncated.
    """

    text: str
    second: str | None
    tokens: tuple[str, ...]
    token_ids: NDArray[np.int32] = field(repr=False)
    segment_ids: NDArray[np.int32] = field(repr=False)
    offsets: NDArray[np.int32] = field(repr=False)
    is_text: NDArray[np.bool_] = field(repr=False)
    words: tuple[TextWord, ...] = field(repr=False)
    truncated: bool

    @property
    def sequences(self) -> Sequences:
        """The tokens as a batch of one sequence."""
        first = np.count_nonzero(self.segment_ids == 0)
        return Sequences(
            self.token_ids, np.array([0, len(self.tokens)]), np.array([first], np.int64)
        )

    def lines(self, *, color: bool = False) -> Iterator[str]:
        """Yield the tokens on one line and then as a table, in ANSI colors if `color` is true."""
        shades: Sequence[Color] = get_args(Color)
        names = []
        for number, word in enumerate(self.words):
            for name in self.tokens[word.start : word.stop]:
                painted = color and bool(self.is_text[word.start])
                names.append(colored(name, shades[number % len(shades)]) if painted else name)
        yield " ".join(names)
        yield ""
        width = max(map(len, (*self.tokens, "token")))
        yield f"{'token':{width}}  {'id':>6}  {'text':>4}  {'characters':>10}  word"
        for word in self.words:
            for token in range(word.start, word.stop):
                start, end = self.offsets[token].tolist()
                place = f"{start}-{end}" if self.is_text[token] else ""
                yield (
                    f"{self.tokens[token]:{width}}  {self.token_ids[token]:>6}  "
                    f"{word.segment + 1:>4}  {place:>10}  {word.text}"
                )
        yield ""
        inside = int(np.count_nonzero(self.is_text))
        num_words = sum(bool(self.is_text[word.start]) for word in self.words)
        yield f"{len(self.tokens)} tokens, {inside} of which make up {num_words} words"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        spans = []
        for number, word in enumerate(self.words):
            inside = bool(self.is_text[word.start])
            shade = f"hsl({67 * number % 360} 70% 50% / {0.3 if inside else 0})"
            for token in range(word.start, word.stop):
                title = f"id {self.token_ids[token]}, {word.text}, segment {word.segment}"
                spans.append(
                    f'<span style="background: {shade}; padding: 2px 4px" '
                    f'title="{html.escape(title, quote=True)}">{html.escape(self.tokens[token])}'
                    "</span>"
                )
        return f'<p style="line-height: 2">{" ".join(spans)}</p>'


class _Encoded(NamedTuple):
    """The tokens of a text, and each word with its range of tokens."""

    text: str
    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    spans: Sequence[tuple[int, int]]
    words: Sequence[str]


def tokenize(
    tokenizer: Tokenizer | str | Path,
    text: Text,
    second: Text | None = None,
    max_length: int | None = None,
) -> TokenizedText:
    """Return the tokens and words of a text or a pair of texts.

    Args:
      tokenizer: a tokenizer, or a directory that contains one, such as a work directory.
      text: the text, or a tuple of its words. Words that produce no tokens are left out.
      second: the second text of a pair.
      max_length: the maximum number of tokens, including special tokens; a single text is truncated
        at its end, and in a pair, the longer text is truncated first. None disables truncation.

    Raises:
      ValueError: a text or a word is not a string or has a lone surrogate, `max_length` leaves
        no room for tokens besides the special tokens, or the directory contains no tokenizer.
    """
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    if max_length is not None:
        check_max_length(max_length, 2 if second is None else tokenizer.specials_of_pair)
    texts = [_encode(tokenizer, part) for part in ([text] if second is None else [text, second])]
    first, other = _truncate(texts, tokenizer.specials_of_pair, max_length)
    sequences = build_sequences(tokenizer, [first], [other])
    length, second_start = len(sequences.token_ids), int(sequences.second_starts[0])
    ranges = [(1, 1 + len(first))]
    if other is not None:
        ranges.append((second_start, second_start + len(other)))
    is_text = np.zeros(length, np.bool_)
    offsets = np.zeros((length, 2), np.int32)
    for (start, stop), each in zip(ranges, texts, strict=True):
        is_text[start:stop] = True
        offsets[start:stop] = each.offsets[: stop - start]
    segment_ids = (np.arange(length) >= second_start).astype(np.int32)
    tokens = tuple(str(tokenizer.id_to_token(i)) for i in sequences.token_ids.tolist())
    return TokenizedText(
        text=texts[0].text,
        second=None if second is None else texts[1].text,
        tokens=tokens,
        token_ids=sequences.token_ids,
        segment_ids=segment_ids,
        offsets=offsets,
        is_text=is_text,
        words=tuple(_words(tokens, segment_ids, texts, ranges)),
        truncated=len(first) + len(other or ()) < sum(len(each.ids) for each in texts),
    )


def _encode(tokenizer: Tokenizer, text: Text) -> _Encoded:
    if isinstance(text, tuple):
        return _encode_words(tokenizer, text)
    (located,) = tokenizer.encode_with_offsets([text])
    (words,) = split_words(tokenizer, [text])
    spans = word_spans(located.offsets, words, np.isin(located.ids, tokenizer.special_ids))
    begins, ends = located.offsets[:, 0].tolist(), located.offsets[:, 1].tolist()
    names = [text[begins[start] : ends[stop - 1]] for start, stop in spans]
    return _Encoded(text, located.ids, located.offsets, spans, names)


def _encode_words(tokenizer: Tokenizer, words: Sequence[str]) -> _Encoded:
    offsets: list[tuple[int, int]] = []
    ids: list[int] = []
    kept, ends, position = [], [0], 0
    for word, word_ids in zip(words, tokenizer.encode_words(words), strict=True):
        offsets += [(position, position + len(word))] * len(word_ids)
        ids += word_ids
        position += len(word) + 1
        if word_ids:
            kept.append(word)
            ends.append(len(ids))
    return _Encoded(
        " ".join(words),
        np.array(ids, np.int32),
        np.array(offsets, np.int32).reshape(-1, 2),
        list(pairwise(ends)),
        kept,
    )


def _truncate(
    texts: Sequence[_Encoded], specials_of_pair: int, max_length: int | None
) -> tuple[Sequence[int], Sequence[int] | None]:
    first, *others = (each.ids.tolist() for each in texts)
    if not others:
        return first[: None if max_length is None else max_length - 2], None
    (second,) = others
    if max_length is None:
        return first, second
    return truncate_pair(first, second, max_length - specials_of_pair)


def word_spans(
    offsets: NDArray[np.int32], words: Sequence[Word], special: NDArray[np.bool_]
) -> list[tuple[int, int]]:
    """Group the tokens of a text into words.

    Args:
      offsets: [tokens, 2], the character range of each token.
      words: the words of the text, in order.
      special: [tokens], whether a token is a special token, which forms a word on its own.

    Returns:
      Each group's range of tokens, in order. Words that share a token form one group. A token that
      covers no characters of a word, such as a SentencePiece token for a space, belongs to the next
      word.
    """
    starts = np.array([word.start for word in words], np.int64)
    ends = np.array([word.end for word in words], np.int64)
    spans: list[tuple[int, int]] = []
    last_word = -1
    for token, (begin, end) in enumerate(offsets.tolist()):
        first = int(np.searchsorted(ends, begin, side="right"))
        last = max(first, int(np.searchsorted(starts, end, side="left")) - 1)
        if first > last_word or not spans or special[token] or special[token - 1]:
            spans.append((token, token + 1))
        else:
            spans[-1] = (spans[-1][0], token + 1)
        last_word = max(last_word, last)
    return spans


def _words(
    tokens: Sequence[str],
    segment_ids: NDArray[np.int32],
    texts: Sequence[_Encoded],
    ranges: Sequence[tuple[int, int]],
) -> list[TextWord]:
    """Return the words and special tokens of a sequence.

    Args:
      tokens: the tokens of the sequence.
      segment_ids: [tokens].
      texts: the encoded texts.
      ranges: the range of each text's tokens in the sequence; truncated texts have shorter ranges.
    """
    words = [
        TextWord(name, int(segment_ids[start + first]), start + first, min(start + last, stop))
        for text, (start, stop) in zip(texts, ranges, strict=True)
        for (first, last), name in zip(text.spans, text.words, strict=True)
        if start + first < stop
    ]
    inside = {token for word in words for token in range(word.start, word.stop)}
    words += [
        TextWord(name, int(segment_ids[token]), token, token + 1)
        for token, name in enumerate(tokens)
        if token not in inside
    ]
    words = [word if word.text else word._replace(text=tokens[word.start]) for word in words]
    return sorted(words, key=lambda word: word.start)
