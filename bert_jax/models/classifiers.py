"""Encoders with a classifier on top: of whole sequences, and of every token."""

from __future__ import annotations

import abc

import jax
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.layers import dense, scores_of


class Classifier(nnx.Module, abc.ABC):
    """An encoder, and a dense layer that scores what the subclass gives it."""

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        scores: int,
        dropout: float,
    ):
        self.dropout = dropout
        self.encoder = Encoder(config, compute, rngs)
        self.classifier = dense(config.hidden_dim, scores, ("embed", None), config, compute, rngs)

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None,
        attention_mask: jax.Array | None,
        *,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """The float32 logits of `read_out` for a batch of one document a row, padding last.

        Args:
          token_ids, segment_ids: [batch, length].
          attention_mask: like `token_ids`, 1 for tokens and 0 for padding; None if there is none.
          dropout_key: None when evaluating; the same key draws the same dropout.
        """
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        output = self.encoder(
            token_ids, segment_ids, None, attention_mask, packed=False, dropout_key=keys[0]
        )
        return self.read_out(output.hidden, keys[1])["logits"]

    @abc.abstractmethod
    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """What the head gives for the last layer's output [batch, length, hidden_dim], by name."""

    def _logits(self, x: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
        return scores_of(self.classifier, dropout(x, self.dropout, dropout_key))


class SentenceClassifier(Classifier):
    """Scores of a sequence from its pooled `[CLS]` vector (Devlin et al. 2019, section 4.1).

    For multiple choice (section 4.4) a choice is a sequence with one score.
    """

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        scores: int,
        dropout: float,
    ):
        super().__init__(config, compute, rngs, scores=scores, dropout=dropout)
        self.pooler = Pooler(config, compute, rngs)
        self.drops_pooler_input = config.pooler_dropout

    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """`pooled` [batch, hidden_dim] and float32 `logits` [batch, scores] of the last layer."""
        if self.drops_pooler_input and dropout_key is not None:
            first, dropout_key = jax.random.split(dropout_key)
            hidden = dropout(hidden[:, :1], self.dropout, first)
        pooled = self.pooler(hidden)
        return {"pooled": pooled, "logits": self._logits(pooled, dropout_key)}


class TokenClassifier(Classifier):
    """Scores of every token: tags (Devlin et al. 2019, section 5.3) or a span's ends (4.2)."""

    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """float32 `logits` [batch, length, scores] of the last layer."""
        return {"logits": self._logits(hidden, dropout_key)}
