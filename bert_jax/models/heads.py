"""Define encoders with heads: pretraining models, classifiers and students for distillation."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.activations import activation_function
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.embeddings import Embeddings
from bert_jax.models.encoder import Encoder, EncoderOutput, Pooler
from bert_jax.models.layers import (
    constrain,
    dense,
    embedding_table,
    norm_layer,
    scores_of,
    select_rows,
)
from bert_jax.models.options import Pooling

PAIRS_HEAD = "next_sentence."  # name prefix of the sentence-pair head's parameters


class MaskedLMHead(nnx.Module):
    """A transform, followed by dot products with the token embeddings, plus a bias.

    As in the code released with Devlin et al. 2019, the transform consists of a dense layer that
    maps to the dimension of the token table, an activation and a norm. The config can leave out the
    transform (`head_transform`), and give the output layer a table of its own (`tied_output`).
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.transforms, self.tied = config.head_transform, config.tied_output
        dim = config.table_dim
        if self.transforms:
            self.activation = activation_function(config.activation, compute.ops)
            self.transform = dense(
                *(config.hidden_dim, dim, ("embed", None), config, compute, rngs),
                bias=config.dense_bias,
            )
            self.norm = norm_layer(dim, config, compute, rngs)
        if not self.tied:
            axes = ("vocab", "embed")
            self.output = embedding_table(config.vocab_size, dim, axes, config, rngs)
        self.bias = nnx.Param(jnp.zeros((config.vocab_size,)), logical_axes=("vocab",))

    def __call__(self, x: jax.Array, embeddings: Embeddings) -> jax.Array:
        """Return float32 logits [batch, count, vocab_size] for `x` [batch, count, hidden_dim]."""
        if self.transforms:
            x = self.norm(self.activation(self.transform(x)))
        table = None if self.tied else self.output[...]
        return constrain(embeddings.attend(x, self.bias[...], table), "batch", None, "vocab")


# A classifier's prediction head starts with the parameters of the masked-LM head's transform.
FROM_MASKED_LM = {
    "prediction.dense.": "masked_lm.transform.",
    "prediction.norm.": "masked_lm.norm.",
}


class PredictionHead(nnx.Module):
    """A dense layer, an activation and a norm in front of a classifier (ModernBERT's release)."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        dim = config.hidden_dim
        self.dense = dense(dim, dim, ("embed", None), config, compute, rngs, bias=config.dense_bias)
        self.norm = norm_layer(dim, config, compute, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Transform the last dim of `x` [..., hidden_dim]."""
        return self.norm(self.activation(self.dense(x)))


class PretrainingOutput(NamedTuple):
    """The outputs of a pretraining model.

    Attributes:
      token_logits: float32 [batch, count, vocab_size] at the masked positions.
      next_sentence_logits: float32 [batch, fragments, 2], one pair of logits per fragment (a
        fragment is the part of a document that lies in one row). Class 0 means that the second
        sentence comes next or the sentences are in order; class 1 means that the second sentence is
        random or the sentences are swapped. None without a sentence-pair head.
      encoder: the encoder's outputs.
    """

    token_logits: jax.Array
    next_sentence_logits: jax.Array | None
    encoder: EncoderOutput


class PretrainingModel(nnx.Module):
    """An encoder with a masked-LM head and, optionally, a pooler and a sentence-pair head.

    Args:
      config: the encoder's architecture.
      compute: options for the computation.
      rngs: the keys for randomly initialized parameters.
      next_sentence: whether the model has a pooler and a sentence-pair head.
    """

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
        """Compute logits for the masked positions and for each fragment's sentence pair.

        Args:
          token_ids: see `Encoder.__call__`.
          segment_ids: see `Encoder.__call__`.
          position_ids: see `Encoder.__call__`.
          document_ids: see `Encoder.__call__`.
          masked_positions: [batch, count], the only positions at which token logits are computed.
          cls_positions: [batch, fragments], the position of each fragment's `[CLS]` token.
          packed: see `Encoder.__call__`.
          dropout_key: see `Encoder.__call__`.
          return_hidden_states: see `Encoder.__call__`.
          return_attention_scores: see `Encoder.__call__`.
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

    def read_out(
        self, hidden: jax.Array, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Apply the heads to the last layer's output `hidden` [batch, length, hidden_dim].

        The heads do not depend on the `attention_mask`.

        Returns:
          A dict with `token_logits` [batch, length, vocab_size] and, if the model has a
          sentence-pair head, `pooled` [batch, hidden_dim] and `next_sentence_logits` [batch, 2].
        """
        outputs = {"token_logits": self.masked_lm(hidden, self.encoder.embeddings)}
        if self.has_next_sentence:
            outputs["pooled"] = self.pooler(hidden)
            outputs["next_sentence_logits"] = scores_of(self.next_sentence, outputs["pooled"])
        return outputs


class NextSentenceModel(nnx.Module):
    """An encoder with a pooler and a sentence-pair head."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(config, compute, rngs)
        self.pooler = Pooler(config, compute, rngs)
        self.next_sentence = dense(config.hidden_dim, 2, ("embed", None), config, compute, rngs)

    def read_out(
        self, hidden: jax.Array, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return a dict with `pooled` [batch, hidden_dim] and `next_sentence_logits` [batch, 2]."""
        pooled = self.pooler(hidden)
        return {"pooled": pooled, "next_sentence_logits": scores_of(self.next_sentence, pooled)}


class ReplacedTokenHead(nnx.Module):
    """A dense layer, an activation and a score: the logit of the token having been replaced.

    Source: Clark et al. 2020 ("ELECTRA"), section 2, and the code released with it.
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.activation = activation_function(config.activation, compute.ops)
        dim, axes = config.hidden_dim, ("embed", None)
        self.dense = dense(dim, dim, axes, config, compute, rngs)
        self.score = dense(dim, 1, axes, config, compute, rngs)

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Return float32 logits [batch, length] for `hidden` [batch, length, hidden_dim]."""
        return scores_of(self.score, self.activation(self.dense(hidden)))[..., 0]


class ReplacedTokenModel(nnx.Module):
    """An encoder that detects replaced tokens, which is ELECTRA's discriminator."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.encoder = Encoder(config, compute, rngs)
        self.replaced_token = ReplacedTokenHead(config, compute, rngs)

    def read_out(
        self, hidden: jax.Array, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return a dict with `replaced_token_logits` [batch, length]."""
        return {"replaced_token_logits": self.replaced_token(hidden)}


class EncoderModel(nnx.Module):
    """An encoder without a head, with an optional pooler."""

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, *, pooler: bool
    ):
        self.encoder = Encoder(config, compute, rngs)
        self.has_pooler = pooler
        if pooler:
            self.pooler = Pooler(config, compute, rngs)

    def read_out(
        self, hidden: jax.Array, attention_mask: jax.Array | None = None
    ) -> dict[str, jax.Array]:
        """Return a dict with `pooled` [batch, hidden_dim], or {} if there is no pooler."""
        return {"pooled": self.pooler(hidden)} if self.has_pooler else {}


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
    """A classifier that scores a sequence's pooled vector, which is normally that of `[CLS]`.

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


GENERATOR = "generator."  # name prefix of the parameters that an ELECTRA generator does not share
# Parameters whose names start with one of these prefixes are used only in training.
TRAINING_ONLY = ("to_teacher.", GENERATOR)


class ToTeacher(nnx.Module):
    """Trainable projections to a teacher's dimension: one for the embeddings, one for all layers.

    Source: Jiao et al. 2020 ("TinyBERT"), equations 8 and 9.
    """

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs, teacher_dim: int
    ):
        axes = ("embed", None)
        self.embeddings = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)
        self.layers = dense(config.hidden_dim, teacher_dim, axes, config, compute, rngs)

    def __call__(self, states: Sequence[jax.Array]) -> list[jax.Array]:
        """Project the embeddings and the layers' outputs to [batch, length, teacher_dim].

        Args:
          states: the embeddings and the output of every layer, each [batch, length, hidden_dim].
        """
        return [self.embeddings(states[0]), *(self.layers(state) for state in states[1:])]


class StudentModel(PretrainingModel):
    """A `PretrainingModel` with projections for a teacher that has a different `hidden_dim`."""

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        rngs: nnx.Rngs,
        *,
        next_sentence: bool,
        teacher_dim: int,
    ):
        # Initialize the model first, so that its initial parameters are the same as without a
        # teacher.
        super().__init__(config, compute, rngs, next_sentence=next_sentence)
        self.to_teacher = ToTeacher(config, compute, rngs, teacher_dim)
