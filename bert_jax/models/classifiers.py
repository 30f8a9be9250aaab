"""Define classifiers: encoders with a dense layer that scores sequences or tokens."""

from __future__ import annotations

import abc
from typing import assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.activations import activation_function
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.encoder import Encoder
from bert_jax.models.heads import Pooler
from bert_jax.models.layers import dense, scores_of
from bert_jax.models.norms import norm_layer
from bert_jax.models.options import Pooling

# A classifier's prediction head is initialized with the parameters of the masked-LM head's
# transform.
FROM_MASKED_LM = {
    "prediction.dense.": "masked_lm.transform.",
    "prediction.norm.": "masked_lm.norm.",
}


class PredictionHead(nnx.Module):
    """A dense layer, activation and norm before a classifier's last layer, as in ModernBERT."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        dim = config.hidden_dim
        self.dense = dense(dim, dim, ("embed", None), config, compute, rngs, bias=config.dense_bias)
        self.norm = norm_layer(dim, config, compute, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform the last dim of `x` [..., hidden_dim]."""
        return self.norm(self.activation(self.dense(x)))


class Classifier(nnx.Module, abc.ABC):
    """An encoder with a dense layer that scores the vectors selected by the subclass."""

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
        self.ops = compute.ops
        self.encoder = Encoder(config, compute, rngs)
        self.classifier = dense(config.hidden_dim, scores, ("embed", None), config, compute, rngs)
        match config.classifier_transform:
            case "pooler":
                self.has_prediction = False
            case "prediction":
                self.has_prediction = True
                self.prediction = PredictionHead(config, compute, rngs)
            case _:
                assert_never(config.classifier_transform)

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None,
        attention_mask: jax.Array | None,
        *,
        dropout_key: jax.Array | None = None,
    ) -> jax.Array:
        """Compute float32 logits for rows that each hold one document followed by padding.

        Args:
          token_ids: [batch, length].
          segment_ids: [batch, length], or None for all zeros.
          attention_mask: [batch, length], 1 for tokens and 0 for padding; None if there is no
            padding.
          dropout_key: None during evaluation; the same key gives the same dropout masks.
        """
        keys = (None, None) if dropout_key is None else jax.random.split(dropout_key)
        output = self.encoder(
            token_ids, segment_ids, None, attention_mask, packed=False, dropout_key=keys[0]
        )
        return self.read_out(output.hidden, attention_mask, keys[1])["logits"]

    @abc.abstractmethod
    def read_out(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Apply the head to the last layer's output and return a dict of outputs.

        Args:
          hidden: [batch, length, hidden_dim].
          attention_mask: see `__call__`.
          dropout_key: None during evaluation.
        """

    def _logits(self, x: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
        return scores_of(self.classifier, dropout(x, self.dropout, dropout_key, self.ops))


class SentenceClassifier(Classifier):
    """A classifier that scores a sequence's pooled vector, normally the vector of `[CLS]`.

    In multiple choice, each choice is a sequence with one score.

    Source: Devlin et al. 2019, sections 4.1 (sequences) and 4.4 (multiple choice).
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
        self.pooling = config.pooling
        if not self.has_prediction:
            self.pooler = Pooler(config, compute, rngs)
        self.drops_pooler_input = config.pooler_dropout

    def read_out(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return a dict with `pooled` [batch, hidden_dim] and float32 `logits` [batch, scores]."""
        x = pool(hidden, attention_mask, self.pooling)
        if self.drops_pooler_input and dropout_key is not None:
            first, dropout_key = jax.random.split(dropout_key)
            x = dropout(x[:, None], self.dropout, first, self.ops)[:, 0]
        pooled = self.prediction(x) if self.has_prediction else self.pooler.transform(x)
        return {"pooled": pooled, "logits": self._logits(pooled, dropout_key)}


def pool(hidden: jax.Array, attention_mask: jax.Array | None, pooling: Pooling) -> jax.Array:
    """Return one vector [batch, hidden_dim] for each sequence.

    Args:
      hidden: [batch, length, hidden_dim].
      attention_mask: [batch, length], 1 for tokens and 0 for padding; None if there is no padding.
      pooling: "cls" for the first token's vector, or "mean" for the mean of all tokens, which is
        computed in float32.
    """
    match pooling:
        case "cls":
            return hidden[:, 0]
        case "mean":
            if attention_mask is None:
                return jnp.mean(hidden, axis=1, dtype=jnp.float32).astype(hidden.dtype)
            weights = attention_mask.astype(jnp.float32)[..., None]
            total = jnp.sum(hidden.astype(jnp.float32) * weights, axis=1)
            return (total / jnp.maximum(jnp.sum(weights, axis=1), 1.0)).astype(hidden.dtype)
        case _:
            assert_never(pooling)


class TokenClassifier(Classifier):
    """A classifier that scores every token, for tagging or for finding the ends of a span.

    Source: Devlin et al. 2019, sections 5.3 (tags) and 4.2 (spans).
    """

    def read_out(
        self,
        hidden: jax.Array,
        attention_mask: jax.Array | None = None,
        dropout_key: jax.Array | None = None,
    ) -> dict[str, jax.Array]:
        """Return a dict with float32 `logits` [batch, length, scores]."""
        x = self.prediction(hidden) if self.has_prediction else hidden
        return {"logits": self._logits(x, dropout_key)}
