"""Heads on the encoder: pretraining, classifiers, and a student of a wider teacher."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import Encoder, EncoderOutput, Pooler
from bert_jax.models.layers import constrain, dense, layer_norm, scores_of, select_rows
from bert_jax.models.ops import activation_function, dropout

PAIRS_HEAD = "next_sentence."  # what the names of the parameters of a head of pairs begin with


class MaskedLMHead(nnx.Module):
    """Transform, then token logits through the transposed token embedding plus a bias.

    The transform is dense, activation, LayerNorm, as in the release of Devlin et al. 2019; to the
    dimension of the table.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        dim = config.table_dim
        self.transform = dense(config.hidden_dim, dim, ("embed", None), config, compute, rngs)
        self.norm = layer_norm(dim, config, compute, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,)), logical_axes=("vocab",))

    def __call__(self, x: jax.Array, embeddings: Embeddings) -> jax.Array:
        """[batch, count, hidden_dim] to float32 logits [batch, count, vocab_size]."""
        x = self.activation(self.transform(x))
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
        self.ops = compute.ops
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
        return scores_of(self.classifier, dropout(x, self.dropout, dropout_key, self.ops))


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
            hidden = dropout(hidden[:, :1], self.dropout, first, self.ops)
        pooled = self.pooler(hidden)
        return {"pooled": pooled, "logits": self._logits(pooled, dropout_key)}


class TokenClassifier(Classifier):
    """Scores of every token: tags (Devlin et al. 2019, section 5.3) or a span's ends (4.2)."""

    def read_out(
        self, hidden: jax.Array, dropout_key: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """float32 `logits` [batch, length, scores] of the last layer."""
        return {"logits": self._logits(hidden, dropout_key)}


# What the names of parameters begin with that are no part of the model once it is trained.
TRAINING_ONLY = "to_teacher."


class ToTeacher(nnx.Module):
    """Two learned maps into a teacher's space: for the embeddings, and for all layers.

    Jiao et al. 2020 ("TinyBERT"), equations 8 and 9.
    """

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, teacher_dim: int
    ):
        axes = ("embed", None)
        self.embeddings = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)
        self.layers = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)

    def __call__(self, states: Sequence[jax.Array]) -> list[jax.Array]:
        """Embeddings and layers [batch, length, hidden_dim] to as many [.., teacher_dim]."""
        return [self.embeddings(states[0]), *(self.layers(state) for state in states[1:])]


class StudentModel(PretrainingModel):
    """A `PretrainingModel` with maps to the space of a teacher of another `hidden_dim`."""

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        next_sentence: bool,
        teacher_dim: int,
    ):
        # The model first: it begins with the same parameters as without a teacher.
        super().__init__(config, compute, rngs, next_sentence=next_sentence)
        self.to_teacher = ToTeacher(config, compute, rngs, teacher_dim)
