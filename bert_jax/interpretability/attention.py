"""Trace what a model computes for a text: attention, vectors, and the parts of both."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import Predictor, Row, check_strings
from bert_jax.interpretability.trace import trace
from bert_jax.interpretability.traced_text import (
    EmbeddingSum,
    TracedText,
    TracedWord,
    word_spans,
)
from bert_jax.labeled_data.features import Features, build_sequences, truncate_pair
from bert_jax.models.config import DTypeName
from bert_jax.tokenizers.words import split_words

Text = str | tuple[str, ...]


class _Tokens(NamedTuple):
    """The token ids of a text, and the range of tokens of each word with the word's text."""

    text: str
    ids: NDArray[np.int32]
    spans: Sequence[tuple[int, int]]
    words: Sequence[str]


class Attention(Predictor):
    """Traces what a model computes for a text.

    It accepts models with any head, trained with any attention backend.

    >>> trace = Attention("runs/mine")("I love my pet Python")                # doctest: +SKIP
    >>> trace.attention.shape                                                 # doctest: +SKIP
    (12, 12, 7, 7)
    """

    heads = None
    made_by = "`bert-jax pretrain`"

    def __init__(
        self,
        work_dir: str | Path,
        *,
        max_length: int | None = None,
        dtype: DTypeName = "float32",
    ):
        """Load the best checkpoint of a work directory, or else the newest.

        Args:
          work_dir: the work directory of a run or of `bert-jax import`.
          max_length: the maximum number of tokens in a sequence, including special tokens; None for
            that of the fine-tuning run, or for all positions of other models.
          dtype: the type to compute in; see `ComputeConfig`.
        """
        super().__init__(work_dir, batch_size=1, max_length=max_length, dtype=dtype)

    def __call__(self, text: Text, second: Text | None = None) -> TracedText:
        """Return everything that the encoder computes for a text or a pair of texts.

        Args:
          text: a text, or a tuple of its words.
          second: the second text of a pair.

        Raises:
          UnusableText: a text or a word is not a string or not valid Unicode.
        """
        given = [text] if second is None else [text, second]
        check_strings([part if isinstance(part, tuple) else (part,) for part in given])
        tokens = [self._tokenize(part) for part in given]
        first, other = self._truncated(tokens)
        sequences = build_sequences(self.tokenizer, [first], [other])
        (row,) = self._run(trace, Features(sequences))
        length, second_start = len(sequences.token_ids), int(sequences.second_starts[0])
        segment_ids = (np.arange(length) >= second_start).astype(np.int32)
        names = tuple(str(self.tokenizer.id_to_token(i)) for i in sequences.token_ids.tolist())
        ranges = [(1, 1 + len(first)), (second_start, length - 1)]
        words = _words(names, segment_ids, tokens, ranges)
        return TracedText(
            text=tokens[0].text,
            second=None if second is None else tokens[1].text,
            tokens=names,
            token_ids=sequences.token_ids,
            segment_ids=segment_ids,
            words=tuple(words),
            truncated=len(first) + len(other or ()) < sum(len(each.ids) for each in tokens),
            **_arrays(row, length),
        )

    def _tokenize(self, text: Text) -> _Tokens:
        if isinstance(text, tuple):
            return self._tokenize_words(text)
        (located,) = self.tokenizer.encode_with_offsets([text])
        (words,) = split_words(self.tokenizer, [text])
        spans = word_spans(located.offsets, words)
        begins, ends = located.offsets[:, 0].tolist(), located.offsets[:, 1].tolist()
        names = [text[begins[start] : ends[stop - 1]] for start, stop in spans]
        return _Tokens(text, located.ids, spans, names)

    def _tokenize_words(self, words: Sequence[str]) -> _Tokens:
        ids = self.tokenizer.encode_words(words)
        kept = [(word, each) for word, each in zip(words, ids, strict=True) if each]
        ends = np.cumsum([0, *(len(each) for _, each in kept)]).tolist()
        flat = np.array([token_id for _, each in kept for token_id in each], np.int32)
        return _Tokens(" ".join(words), flat, list(pairwise(ends)), [word for word, _ in kept])

    def _truncated(self, tokens: Sequence[_Tokens]) -> tuple[Sequence[int], Sequence[int] | None]:
        ids = [each.ids.tolist() for each in tokens]
        if len(ids) == 1:
            return ids[0][: self.max_length - 2], None
        first, second = ids
        return truncate_pair(first, second, self.max_length - self.tokenizer.specials_of_pair)


def _words(
    names: Sequence[str],
    segment_ids: NDArray[np.int32],
    texts: Sequence[_Tokens],
    ranges: Sequence[tuple[int, int]],
) -> list[TracedWord]:
    """Return the words and special tokens of a sequence.

    Args:
      names: the tokens of the sequence.
      segment_ids: [tokens].
      texts: the tokenized texts.
      ranges: the range of each text's tokens in the sequence, which may have lost its end.
    """
    words = [
        TracedWord(name, int(segment_ids[start + first]), start + first, min(start + last, stop))
        for text, (start, stop) in zip(texts, ranges, strict=False)
        for (first, last), name in zip(text.spans, text.words, strict=True)
        if start + first < stop
    ]
    inside = {token for word in words for token in range(word.start, word.stop)}
    words += [
        TracedWord(name, int(segment_ids[token]), token, token + 1)
        for token, name in enumerate(names)
        if token not in inside
    ]
    words = [word if word.text else word._replace(text=names[word.start]) for word in words]
    return sorted(words, key=lambda word: word.start)


def _arrays(row: Row, length: int) -> dict[str, Any]:
    """Return the traced arrays of a row of `length` tokens without its padding."""
    by_head = ("queries", "keys", "values", "head_outputs")
    segment = row["segment"][:length].copy() if "segment" in row else None
    return {
        "attention": row["attention"][:, :, :length, :length].copy(),
        **{name: row[name][:, :, :length].copy() for name in by_head},
        "embedding": EmbeddingSum(
            row["token"][:length].copy(), row["position"][:length].copy(), segment
        ),
        "hidden_states": row["hidden_states"][:, :length].copy(),
    }
