"""Count a model's parameters and floating-point operations; a multiply-add counts as two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import jax

from bert_jax.models.config import EncoderConfig, NormPlacement
from bert_jax.models.model import ClassifierHead, ModelConfig
from bert_jax.models.parameters import count

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


# Prefix of the parameter names -> what a person calls the part; the first match counts.
PARTS: tuple[tuple[str, str], ...] = (
    ("encoder.embeddings.token", "token embedding"),
    ("encoder.embeddings.position", "position embedding"),
    ("encoder.embeddings.segment", "segment embedding"),
    ("encoder.embeddings.norm", "embedding LayerNorm"),
    ("encoder.embeddings.projection", "embedding projection"),
    (".attention.", "self-attention"),
    (".attention_norm.", "attention LayerNorm"),
    (".ffn.", "feed-forward"),
    (".ffn_norm.", "feed-forward LayerNorm"),
    ("encoder.final_norm", "final LayerNorm"),
    ("pooler", "pooler"),
    ("masked_lm", "masked-LM head (output tied to the token embedding)"),
    ("next_sentence", "sentence-pair head"),
    ("classifier", "classifier"),
)


def parameters_by_part(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """The parameters of each part of `PARTS` that the model has, in that order.

    Raises:
      ValueError: a parameter belongs to no part.
    """
    parts: dict[str, dict[str, jax.ShapeDtypeStruct]] = {title: {} for _, title in PARTS}
    for name, shape in shapes.items():
        titles = [title for prefix, title in PARTS if prefix in name]
        if not titles:
            raise ValueError(f"parameter {name} belongs to no known part of the model")
        parts[titles[0]][name] = shape
    return {title: found for title, found in parts.items() if found}


def counts_by_part(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, int]:
    """Number of parameters in each part."""
    return {title: count(found) for title, found in parameters_by_part(shapes).items()}


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters: the embeddings, all layers, and everything above the layers."""

    embeddings: int
    layers: int
    above: int

    @property
    def total(self) -> int:
        """All parameters of the model."""
        return self.embeddings + self.layers + self.above


def parameter_counts(model: ModelConfig) -> ParameterCounts:
    """Count the parameters that `define_model` gives a model."""
    encoder = model.encoder
    hidden = encoder.hidden_dim
    final_norm: dict[NormPlacement, int] = {"post": 0, "pre": 2 * hidden}
    above = final_norm[encoder.norm]
    pooler = _dense(hidden, hidden)
    match model.head_kind:
        case "encoder":
            above += pooler if model.pooler else 0
        case "pretraining":
            above += _masked_lm(encoder) + pooler + _dense(hidden, 2)
        case "masked_lm":
            above += _masked_lm(encoder)
        case "next_sentence":
            above += pooler + _dense(hidden, 2)
        case ClassifierHead():
            above += (pooler if model.has_pooler else 0) + _dense(hidden, len(model.scores))
        case _:
            assert_never(model.head_kind)
    return ParameterCounts(_embeddings(encoder), _layers(encoder), above)


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings(encoder: EncoderConfig) -> int:
    dim = encoder.table_dim
    rows = encoder.vocab_size + encoder.num_segments
    match encoder.positions:
        case "learned":
            rows += encoder.position_offset + encoder.max_positions
        case "sinusoidal":
            pass
        case _:
            assert_never(encoder.positions)
    projection = 0 if encoder.embedding_dim is None else _dense(dim, encoder.hidden_dim)
    return rows * dim + 2 * dim + projection


def _layers(encoder: EncoderConfig) -> int:
    hidden, layers, groups = encoder.hidden_dim, encoder.num_layers, encoder.num_groups
    attention = 4 * _dense(hidden, hidden) + 2 * hidden
    ffn = _dense(hidden, encoder.ffn_dim) + _dense(encoder.ffn_dim, hidden) + 2 * hidden
    match encoder.sharing:
        case "none":
            return layers * (attention + ffn)
        case "all":
            return groups * (attention + ffn)
        case "attention":
            return groups * attention + layers * ffn
        case "ffn":
            return layers * attention + groups * ffn
        case _:
            assert_never(encoder.sharing)


def _masked_lm(encoder: EncoderConfig) -> int:
    dim = encoder.table_dim
    return _dense(encoder.hidden_dim, dim) + 2 * dim + encoder.vocab_size
