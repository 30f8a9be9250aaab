"""Floating-point operations of an encoder's matrix products; a multiply-add counts as two."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig

# A backward pass has two products (for the input and for the parameters) for each forward one.
TRAINING_FACTOR = 3


@dataclass(frozen=True)
class LayerFlops:
    """One layer, one sequence, forward.

    projections: query, key and value. attention: scores, weighted sum and output projection.
    ffn: both dense layers.
    """

    projections: int
    attention: int
    ffn: int

    @property
    def total(self) -> int:
        """The whole layer."""
        return self.projections + self.attention + self.ffn


def layer_flops(config: EncoderConfig, length: int) -> LayerFlops:
    """Forward FLOPs of one layer on one sequence of `length` tokens.

    Element-wise work (softmax, LayerNorm, GELU) is not counted, padding is.
    """
    dim = config.hidden_dim
    dense = 2 * length * dim * dim
    mixing = 2 * length * length * dim
    return LayerFlops(
        projections=3 * dense,
        attention=2 * mixing + dense,
        ffn=2 * (2 * length * dim * config.ffn_dim),
    )


def encoder_training_flops(config: EncoderConfig, length: int, learning_layers: int) -> int:
    """Forward and backward FLOPs of the encoder's layers on one sequence of `length` tokens.

    learning_layers: the last layers, which a backward pass goes through; below them is only a
    forward one. With the embeddings every layer learns.
    """
    assert 0 <= learning_layers <= config.num_layers
    passes = config.num_layers + (TRAINING_FACTOR - 1) * learning_layers
    return passes * layer_flops(config, length).total


@dataclass(frozen=True)
class PretrainingFlops:
    """One sequence, forward: the encoder's layers, the MLM head, pooler and sentence-pair head.

    projection: of embeddings of another dimension; 0 where there is none.
    """

    projection: int
    layers: int
    masked_lm: int
    next_sentence: int

    @property
    def forward(self) -> int:
        """All parts."""
        return self.projection + self.layers + self.masked_lm + self.next_sentence

    @property
    def training(self) -> int:
        """Forward and backward, nothing rematerialised: what utilisation is measured by."""
        return TRAINING_FACTOR * self.forward


def pretraining_flops(
    config: EncoderConfig, length: int, predictions: int, *, pieces: int = 1, next_sentence: bool
) -> PretrainingFlops:
    """FLOPs of pretraining on one sequence.

    Args:
      length: tokens, padding included.
      predictions: positions the MLM head is evaluated at.
      pieces: documents in the sequence, each with its own pair for the sentence-pair head.
    """
    dim, table_dim = config.hidden_dim, config.table_dim
    projection = 0 if config.embedding_dim is None else 2 * length * table_dim * dim
    pairs = 2 * pieces * (dim * dim + 2 * dim) if next_sentence else 0
    return PretrainingFlops(
        projection=projection,
        layers=config.num_layers * layer_flops(config, length).total,
        masked_lm=2 * predictions * table_dim * (dim + config.vocab_size),
        next_sentence=pairs,
    )
