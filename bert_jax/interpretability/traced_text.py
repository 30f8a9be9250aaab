"""Hold a model's intermediate results for a text, together with the text's tokens and words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.labeled_data.tokenized_text import TextWord, TokenizedText

FloatArray = NDArray[np.float32]


class EmbeddingSum(NamedTuple):
    """The embeddings that a model adds up to form its input, each float32 [tokens, table_dim].

    `position` is None if positions are rotary, and `segment` is None if the model has no segments.
    """

    token: FloatArray
    position: FloatArray | None = None
    segment: FloatArray | None = None


@dataclass(frozen=True, eq=False)
class TracedText(TokenizedText):
    """A text or a pair of texts, with a model's intermediate results for every token.

    The attributes of `TokenizedText` describe the tokens and words.

    Attributes:
      attention: float32 [layers, heads, from, to], the attention probabilities.
      queries: float32 [layers, heads, tokens, head_dim].
      keys: float32 [layers, heads, tokens, head_dim].
      values: float32 [layers, heads, tokens, head_dim].
      head_outputs: float32 [layers, heads, tokens, head_dim], the values weighted by `attention`,
        before the output projection.
      embedding: the parts of the input embedding.
      hidden_states: float32 [layers + 1, tokens, hidden_dim], the embeddings followed by the output
        of every layer.
    """

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

        Attention to a word is the sum over its tokens, and attention from a word is the mean over
        its tokens. The attention from each word therefore still sums to 1 (Clark et al. 2019, "What
        Does BERT Look At?", section 4.1).
        """
        return between_words(self.attention, self.words)

    @property
    def word_vectors(self) -> FloatArray:
        """The vector of each word at each layer, float32 [layers + 1, words, hidden_dim].

        A word's vector is the mean of its tokens' vectors.
        """
        return mean_of_words(self.hidden_states, self.words)


def between_words(attention: FloatArray, words: Sequence[TextWord]) -> FloatArray:
    """Return the attention between words; see `TracedText.attention_between_words`.

    Args:
      attention: [layers, heads, from, to], the attention between tokens.
      words: the words; every token belongs to one of them.

    Returns:
      float32 [layers, heads, words, words].
    """
    starts = [word.start for word in words]
    sizes = np.array([word.stop - word.start for word in words], np.float32)
    to_words = np.add.reduceat(attention, starts, axis=3)
    summed: FloatArray = np.add.reduceat(to_words, starts, axis=2)
    return summed / sizes[:, None]


def mean_of_words(states: FloatArray, words: Sequence[TextWord]) -> FloatArray:
    """Return the vector of each word, which is the mean of the vectors of its tokens.

    Args:
      states: [layers, tokens, hidden_dim].
      words: the words; every token belongs to one of them.

    Returns:
      float32 [layers, words, hidden_dim].
    """
    starts = [word.start for word in words]
    sizes = np.array([word.stop - word.start for word in words], np.float32)
    summed: FloatArray = np.add.reduceat(states, starts, axis=1)
    return summed / sizes[:, None]


# Entries of JSON files that explain how layers and heads are numbered.
COUNTED_FROM = {"layers_count_from": 0, "heads_count_from": 0}


def layer_names(count: int) -> list[str]:
    """Return names for `count` rows of hidden states: the embeddings, then layers 1, 2, ..."""
    return ["embeddings", *map(str, range(1, count))]
