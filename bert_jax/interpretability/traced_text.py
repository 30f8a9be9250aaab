"""The tokens and words of a text together with everything that a model computes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.tokenizers.words import Word

FloatArray = NDArray[np.float32]


class TracedWord(NamedTuple):
    """A word, a punctuation mark or a special token in a traced text.

    Attributes:
      text: the word as it is written, or the special token.
      segment: 0 for the first text of a pair and 1 for the second.
      start: the index of its first token.
      stop: the index after its last token.
    """

    text: str
    segment: int
    start: int
    stop: int


class EmbeddingSum(NamedTuple):
    """The embeddings whose sum is a model's input, each float32 [tokens, table_dim].

    `segment` is None for a model without segments.
    """

    token: FloatArray
    position: FloatArray
    segment: FloatArray | None


@dataclass(frozen=True, eq=False)
class TracedText:
    """A text or a pair of texts, and everything that a model computes for its tokens.

    Attributes:
      text: the text.
      second: the second text of a pair; None for a single text.
      tokens: all tokens, including `[CLS]` and `[SEP]`.
      token_ids: int32 [tokens].
      segment_ids: int32 [tokens], 0 for the first text and 1 for the second.
      is_text: bool [tokens], whether a token is part of a text rather than `[CLS]` or `[SEP]`.
      words: the words and special tokens, in order; every token belongs to one of them.
      truncated: whether a text was truncated.
      attention: float32 [layers, heads, from, to], the attention probabilities.
      queries: float32 [layers, heads, tokens, head_dim].
      keys: float32 [layers, heads, tokens, head_dim].
      values: float32 [layers, heads, tokens, head_dim].
      head_outputs: float32 [layers, heads, tokens, head_dim], the values weighted by `attention`,
        before the output projection.
      embedding: the parts of the input embedding.
      hidden_states: float32 [layers + 1, tokens, hidden_dim], the embeddings and the output of
        every layer.
    """

    text: str
    second: str | None
    tokens: tuple[str, ...]
    token_ids: NDArray[np.int32] = field(repr=False)
    segment_ids: NDArray[np.int32] = field(repr=False)
    is_text: NDArray[np.bool_] = field(repr=False)
    words: tuple[TracedWord, ...] = field(repr=False)
    truncated: bool
    attention: FloatArray = field(repr=False)
    queries: FloatArray = field(repr=False)
    keys: FloatArray = field(repr=False)
    values: FloatArray = field(repr=False)
    head_outputs: FloatArray = field(repr=False)
    embedding: EmbeddingSum = field(repr=False)
    hidden_states: FloatArray = field(repr=False)

    @property
    def attention_between_words(self) -> FloatArray:
        """The attention probabilities between words, float32 [layers, heads, from, to].

        Attention to a word is the sum over its tokens, and attention from a word is the mean, so
        that the attention from each word still sums to 1 (Clark et al. 2019, "What Does BERT Look
        At?", section 4.1).
        """
        starts = [word.start for word in self.words]
        sizes = np.array([word.stop - word.start for word in self.words], np.float32)
        to_words = np.add.reduceat(self.attention, starts, axis=3)
        summed: FloatArray = np.add.reduceat(to_words, starts, axis=2)
        return summed / sizes[:, None]

    @property
    def word_vectors(self) -> FloatArray:
        """The vector of each word at each layer, float32 [layers + 1, words, hidden_dim].

        It is the mean of the vectors of the word's tokens.
        """
        starts = [word.start for word in self.words]
        sizes = np.array([word.stop - word.start for word in self.words], np.float32)
        summed: FloatArray = np.add.reduceat(self.hidden_states, starts, axis=1)
        return summed / sizes[:, None]


def word_spans(offsets: NDArray[np.int32], words: Sequence[Word]) -> list[tuple[int, int]]:
    """Group the tokens of a text into words.

    Args:
      offsets: [tokens, 2], the characters of each token.
      words: the words of the text in order.

    Returns:
      The range of tokens of each group, in order. Words that share a token, such as the parts of
      "[MASK]", form one group. A token that covers no characters of a word, such as a SentencePiece
      for a space, belongs to the next word.
    """
    starts = np.array([word.start for word in words], np.int64)
    ends = np.array([word.end for word in words], np.int64)
    spans: list[tuple[int, int]] = []
    last_word = -1
    for token, (begin, end) in enumerate(offsets.tolist()):
        first = int(np.searchsorted(ends, begin, side="right"))
        last = max(first, int(np.searchsorted(starts, end, side="left")) - 1)
        if first > last_word or not spans:
            spans.append((token, token + 1))
        else:
            spans[-1] = (spans[-1][0], token + 1)
        last_word = max(last_word, last)
    return spans
