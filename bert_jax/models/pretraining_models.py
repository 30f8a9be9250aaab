"""Define encoders with all, one or none of the pretraining heads."""

from __future__ import annotations

from typing import NamedTuple

import jax
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import Encoder, EncoderOutput
from bert_jax.models.heads import MaskedLMHead, Pooler, ReplacedTokenHead, ToTeacher
from bert_jax.models.layers import dense, scores_of, select_rows


class PretrainingOutput(NamedTuple):
    """The outputs of a pretraining model.

    Attributes:
      token_logits: float32 [batch, count, vocab_size] at the masked positions.
      next_sentence_logits: float32 [batch, fragments, 2], one pair of logits per fragment (a
        fragment is the part of a document that lies in one row). In next-sentence prediction, class
        0 means that the second sentence comes next, and class 1 that it is random. In
        sentence-order prediction, class 0 means that the sentences are in order, and class 1 that
        they are swapped. None without a sentence-pair head.
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
