"""Count a model's parameters and FLOPs, where one multiply-add is two FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import jax

from bert_jax.models.config import EncoderConfig, NormPlacement
from bert_jax.models.heads import GENERATOR
from bert_jax.models.model import ClassifierHead, ModelConfig
from bert_jax.models.parameters import count

# For each matmul in the forward pass, the backward pass has two: one for the gradient with respect
# to the inputs and one for the gradient with respect to the parameters.
TRAINING_FACTOR = 3


@dataclass(frozen=True)
class LayerFlops:
    """One layer's FLOPs in the forward pass on one sequence.

    Attributes:
      projections: the query, key and value projections.
      attention: the attention scores, the weighted sum and the output projection.
      ffn: both dense layers of the feed-forward network.
    """

    projections: int
    attention: int
    ffn: int

    @property
    def total(self) -> int:
        """The FLOPs in the entire layer."""
        return self.projections + self.attention + self.ffn


def layer_flops(config: EncoderConfig, length: int) -> LayerFlops:
    """Return one layer's FLOPs in the forward pass on one sequence.

    Element-wise operations (softmax, LayerNorm, GELU) are not counted.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
    """
    dim = config.hidden_dim
    dense = 2 * length * dim * dim
    mixing = 2 * length * length * dim
    return LayerFlops(
        projections=3 * dense,
        attention=2 * mixing + dense,
        ffn=2 * (2 * length * dim * config.ffn_dim),
    )


def encoder_training_flops(config: EncoderConfig, length: int, trainable_layers: int) -> int:
    """Return the FLOPs of the forward and backward passes through all layers on one sequence.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      trainable_layers: the number of layers that have a backward pass, starting with the last one.
        If the embeddings are trainable, all layers have one.
    """
    assert 0 <= trainable_layers <= config.num_layers
    passes = config.num_layers + (TRAINING_FACTOR - 1) * trainable_layers
    return passes * layer_flops(config, length).total


@dataclass(frozen=True)
class PretrainingFlops:
    """The FLOPs of a pretraining model's forward pass on one sequence.

    Attributes:
      projection: the projection of embeddings to the hidden dimension; 0 if there is none.
      layers: all the encoder's layers.
      masked_lm: the masked-LM head.
      next_sentence: the pooler and the sentence-pair head.
    """

    projection: int
    layers: int
    masked_lm: int
    next_sentence: int

    @property
    def forward(self) -> int:
        """The FLOPs in the forward pass."""
        return self.projection + self.layers + self.masked_lm + self.next_sentence

    @property
    def training(self) -> int:
        """The FLOPs in the forward and backward passes, without rematerialization.

        Utilization is measured relative to this number.
        """
        return TRAINING_FACTOR * self.forward


def pretraining_flops(
    config: EncoderConfig,
    length: int,
    predictions: int,
    *,
    documents_per_row: int = 1,
    next_sentence: bool,
) -> PretrainingFlops:
    """Return the FLOPs needed to pretrain on one sequence.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      predictions: the number of positions at which the masked-LM head is evaluated.
      documents_per_row: the number of documents in the sequence, each of which is a sentence pair.
      next_sentence: whether there is a sentence-pair head.
    """
    dim, table_dim = config.hidden_dim, config.table_dim
    projection = 0 if config.embedding_dim is None else 2 * length * table_dim * dim
    pairs = 2 * documents_per_row * (dim * dim + 2 * dim) if next_sentence else 0
    return PretrainingFlops(
        projection=projection,
        layers=config.num_layers * layer_flops(config, length).total,
        masked_lm=2 * predictions * table_dim * (dim + config.vocab_size),
        next_sentence=pairs,
    )


def replaced_token_flops(
    discriminator: EncoderConfig, generator: EncoderConfig, length: int, predictions: int
) -> int:
    """Return the FLOPs of the forward pass of ELECTRA's two models on one sequence.

    Args:
      discriminator: the discriminator's encoder.
      generator: the generator's encoder.
      length: the number of tokens, including padding.
      predictions: the number of masked positions.
    """
    small = pretraining_flops(generator, length, predictions, next_sentence=False)
    large = pretraining_flops(discriminator, length, 0, next_sentence=False)
    dim = discriminator.hidden_dim
    return small.forward + large.forward + 2 * length * (dim * dim + dim)


# Substrings of parameter names, with the titles of the corresponding parts of a model. The first
# match is used.
_GENERATOR_TITLE = "generator, without the shared embeddings"
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
    ("replaced_token", "replaced-token head"),
    ("classifier", "classifier"),
    (GENERATOR, _GENERATOR_TITLE),
)


def parameters_by_part(
    shapes: Mapping[str, jax.ShapeDtypeStruct],
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Group parameters by the part of the model they belong to, in the order of `PARTS`.

    Raises:
      ValueError: a parameter does not belong to any part.
    """
    parts: dict[str, dict[str, jax.ShapeDtypeStruct]] = {title: {} for _, title in PARTS}
    for name, shape in shapes.items():
        titles = [title for substring, title in PARTS if substring in name]
        if name.startswith(GENERATOR):
            titles = [_GENERATOR_TITLE]
        if not titles:
            raise ValueError(f"parameter {name} does not belong to any known part of the model")
        parts[titles[0]][name] = shape
    return {title: parameters for title, parameters in parts.items() if parameters}


def counts_by_part(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, int]:
    """Return the number of parameters in each part of the model."""
    return {title: count(parameters) for title, parameters in parameters_by_part(shapes).items()}


@dataclass(frozen=True)
class ParameterCounts:
    """Parameter counts for the embeddings, for all layers, and for everything above the layers."""

    embeddings: int
    layers: int
    above: int

    @property
    def total(self) -> int:
        """The number of parameters in the model."""
        return self.embeddings + self.layers + self.above


def parameter_counts(model: ModelConfig) -> ParameterCounts:
    """Compute a model's parameter counts from its config, without calling `define_model`."""
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
        case "replaced_token":
            above += _dense(hidden, hidden) + _dense(hidden, 1)
        case ClassifierHead():
            above += (pooler if model.has_pooler else 0) + _dense(hidden, len(model.scores))
        case _:
            assert_never(model.head_kind)
    return ParameterCounts(_embeddings(encoder), _layers(encoder), above)


def own_generator_parameters(generator: EncoderConfig) -> int:
    """Return the number of parameters that ELECTRA's generator does not share."""
    counts = parameter_counts(ModelConfig(generator, "masked_lm"))
    projection = 0
    if generator.embedding_dim is not None:
        projection = _dense(generator.embedding_dim, generator.hidden_dim)
    return projection + counts.layers + counts.above


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
