"""Encoders with a classifier on top: of whole sequences, and of every token."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.encoder import Encoder, Pooler
from bert_jax.models.layers import dense


class SentenceClassifier(nnx.Module):
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
        self.dropout = dropout
        self.encoder = Encoder(config, compute, rngs)
        self.pooler = Pooler(config, compute, rngs)
        self.classifier = dense(config.hidden_dim, scores, ("embed", None), config, compute, rngs)

    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """`pooled` [batch, hidden_dim] and float32 `logits` [batch, scores] of the last layer."""
        pooled = self.pooler(hidden)
        logits = self.classifier(dropout(pooled, self.dropout, dropout_key))
        return {"pooled": pooled, "logits": logits.astype(jnp.float32)}


class TokenClassifier(nnx.Module):
    """Scores of every token: tags (Devlin et al. 2019, section 5.3) or a span's ends (4.2)."""

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

    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """float32 `logits` [batch, length, scores] of the last layer."""
        logits = self.classifier(dropout(hidden, self.dropout, dropout_key))
        return {"logits": logits.astype(jnp.float32)}
