"""Heads on the encoder, and the models that join the two."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.activations import activation_function
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import Encoder, EncoderOutput, Pooler
from bert_jax.models.layers import dense, layer_norm, scores_of, select_rows
from bert_jax.models.layout import constrain

PAIRS_HEAD = "next_sentence."  # what the names of the parameters of a head of pairs begin with


class MaskedLMHead(nnx.Module):
    """Transform, then token logits through the transposed token embedding plus a bias.

    The transform is dense, activation, LayerNorm, as in the release of Devlin et al. 2019; to the
    dimension of the table.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = config.activation
        dim = config.table_dim
        self.transform = dense(config.hidden_dim, dim, ("embed", None), config, compute, rngs)
        self.norm = layer_norm(dim, config, compute, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,)), logical_axes=("vocab",))

    def __call__(self, x: jax.Array, embeddings: Embeddings) -> jax.Array:
        """[batch, count, hidden_dim] to float32 logits [batch, count, vocab_size]."""
        x = activation_function(self.activation)(self.transform(x))
        logits = embeddings.attend(self.norm(x), self.bias[...])
        return constrain(logits, "batch", None, "vocab")


class PretrainingOutput(NamedTuple):
    """token_logits: [batch, count, vocab_size] float32 at the masked positions.

    next_sentence_logits: [batch, pieces, 2] float32, or None; 0 is next, or in order, and 1 is from
      elsewhere, or swapped.
    encoder: what the encoder gave.
    """

    token_logits: jax.Array
    next_sentence_logits: jax.Array | None
    encoder: EncoderOutput


class PretrainingModel(nnx.Module):
    """The encoder with the masked-LM head and, if asked for, pooler and sentence-pair head."""

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        next_sentence: bool = True,
    ):
        self.encoder = Encoder(config, compute, rngs)
        self.masked_lm = MaskedLMHead(config, compute, rngs)
        self.has_next_sentence = next_sentence
        if next_sentence:
            self.pooler = Pooler(config, compute, rngs)
            self.next_sentence = dense(config.hidden_dim, 2, ("embed", None), config, compute, rngs)

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None,
        position_ids: jax.Array | None,
        document_ids: jax.Array | None,
        masked_positions: jax.Array,
        cls_positions: jax.Array,
        *,
        packed: bool = True,
        dropout_key: jax.Array | None = None,
        return_hidden_states: bool = False,
        return_attention_scores: bool = False,
    ) -> PretrainingOutput:
        """Logits at the masked positions and for each document's sentence pair.

        Args:
          token_ids, segment_ids, position_ids, document_ids, packed, dropout_key,
            return_hidden_states, return_attention_scores: see `Encoder.__call__`.
          masked_positions: [batch, count], where token logits are wanted; nothing else pays for
            the vocabulary-sized product.
          cls_positions: [batch, pieces], the `[CLS]` of each document of a row.
        """
        encoded = self.encoder(
            token_ids,
            segment_ids,
            position_ids,
            document_ids,
            packed=packed,
            dropout_key=dropout_key,
            return_hidden_states=return_hidden_states,
            return_attention_scores=return_attention_scores,
        )
        hidden = encoded.hidden
        token_logits = self.masked_lm(
            select_rows(hidden, masked_positions), self.encoder.embeddings
        )
        if not self.has_next_sentence:
            return PretrainingOutput(token_logits, None, encoded)
        pooled = self.pooler(hidden, cls_positions)
        return PretrainingOutput(token_logits, scores_of(self.next_sentence, pooled), encoded)

    def read_out(self, hidden: jax.Array) -> dict[str, jax.Array]:
        """`token_logits` at every position, `pooled` and `next_sentence_logits` [batch, 2]."""
        outputs = {"token_logits": self.masked_lm(hidden, self.encoder.embeddings)}
        if self.has_next_sentence:
            outputs["pooled"] = self.pooler(hidden)
            outputs["next_sentence_logits"] = scores_of(self.next_sentence, outputs["pooled"])
        return outputs


class NextSentenceModel(nnx.Module):
    """The encoder with pooler and sentence-pair head alone."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(config, compute, rngs)
        self.pooler = Pooler(config, compute, rngs)
        self.next_sentence = dense(config.hidden_dim, 2, ("embed", None), config, compute, rngs)

    def read_out(self, hidden: jax.Array) -> dict[str, jax.Array]:
        """`pooled` [batch, hidden_dim] and `next_sentence_logits` [batch, 2]."""
        pooled = self.pooler(hidden)
        return {"pooled": pooled, "next_sentence_logits": scores_of(self.next_sentence, pooled)}


class EncoderModel(nnx.Module):
    """The encoder, with or without a pooler on it."""

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, *, pooler: bool
    ):
        self.encoder = Encoder(config, compute, rngs)
        self.has_pooler = pooler
        if pooler:
            self.pooler = Pooler(config, compute, rngs)

    def read_out(self, hidden: jax.Array) -> dict[str, jax.Array]:
        """`pooled` [batch, hidden_dim], where there is a pooler."""
        return {"pooled": self.pooler(hidden)} if self.has_pooler else {}
