"""Count a model's parameters and FLOPs, where one multiply-add is two FLOPs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import jax

from bert_jax.models.config import EncoderConfig
from bert_jax.models.heads import GENERATOR
from bert_jax.models.model import ClassifierHead, ModelConfig
from bert_jax.models.options import NormKind, NormPlacement
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
      ffn: all dense layers of the feed-forward network.
    """

    projections: int
    attention: int
    ffn: int

    @property
    def total(self) -> int:
        """The FLOPs in the entire layer."""
        return self.projections + self.attention + self.ffn


def layer_flops(config: EncoderConfig, length: int, layer: int = 0) -> LayerFlops:
    """Return one layer's FLOPs in the forward pass on one sequence.

    Element-wise operations (softmax, norms, activations) are not counted, and neither are pairs of
    tokens that do not see each other because of the layer's window.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      layer: the number of the layer, counted from 0.
    """
    dim = config.hidden_dim
    dense = 2 * length * dim * dim
    mixing = 2 * _visible_pairs(length, config.window_of(layer)) * dim
    return LayerFlops(
        projections=3 * dense,
        attention=2 * mixing + dense,
        ffn=(3 if config.gated_ffn else 2) * (2 * length * dim * config.ffn_dim),
    )


def _visible_pairs(length: int, window: int | None) -> int:
    """Return the number of pairs of tokens in a sequence that see each other."""
    if window is None:
        return length * length
    side = min(window // 2, length - 1)
    # Close to the ends of the sequence, a token sees fewer than `side` tokens on one side.
    return length * (2 * side + 1) - side * (side + 1)


def encoder_training_flops(config: EncoderConfig, length: int, trainable_layers: int) -> int:
    """Return the FLOPs of the forward and backward passes through all layers on one sequence.

    Args:
      config: the encoder's architecture.
      length: the number of tokens, including padding.
      trainable_layers: the number of layers that have a backward pass, starting with the last one.
        If the embeddings are trainable, all layers have one.
    """
    assert 0 <= trainable_layers <= config.num_layers
    flops = [layer_flops(config, length, layer).total for layer in range(config.num_layers)]
    trainable = flops[config.num_layers - trainable_layers :]
    return sum(flops) + (TRAINING_FACTOR - 1) * sum(trainable)


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
    transform = dim if config.head_transform else 0
    projection = 0 if config.embedding_dim is None else 2 * length * table_dim * dim
    pairs = 2 * documents_per_row * (dim * dim + 2 * dim) if next_sentence else 0
    return PretrainingFlops(
        projection=projection,
        layers=encoder_training_flops(config, length, trainable_layers=0),
        masked_lm=2 * predictions * table_dim * (transform + config.vocab_size),
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


_GENERATOR_TITLE = "generator, without the shared embeddings"
_NORM = "norm"
_NORM_TITLES: dict[NormKind, str] = {"layer": "LayerNorm", "rms": "RMSNorm"}
_OUTPUT_TABLE = "masked_lm.output"
_TIED_HEAD = "masked-LM head (output tied to the token embedding)"
# Substrings of parameter names, with the titles of the corresponding parts of a model. The first
# match is used.
PARTS: tuple[tuple[str, str], ...] = (
    ("encoder.embeddings.token", "token embedding"),
    ("encoder.embeddings.position", "position embedding"),
    ("encoder.embeddings.segment", "segment embedding"),
    ("encoder.embeddings.norm", f"embedding {_NORM}"),
    ("encoder.embeddings.projection", "embedding projection"),
    (".attention.", "self-attention"),
    (".attention_norm.", f"attention {_NORM}"),
    (".ffn.", "feed-forward"),
    (".ffn_norm.", f"feed-forward {_NORM}"),
    ("encoder.final_norm", f"final {_NORM}"),
    ("pooler", "pooler"),
    (_OUTPUT_TABLE, "masked-LM output layer"),
    ("masked_lm", _TIED_HEAD),
    ("prediction", "prediction head"),
    ("next_sentence", "sentence-pair head"),
    ("replaced_token", "replaced-token head"),
    ("classifier", "classifier"),
    (GENERATOR, _GENERATOR_TITLE),
)


def parameters_by_part(
    shapes: Mapping[str, jax.ShapeDtypeStruct], norm_kind: NormKind = "layer"
) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
    """Group parameters by the part of the model they belong to, in the order of `PARTS`.

    Args:
      shapes: the shape of every parameter, keyed by name.
      norm_kind: see `EncoderConfig`; the titles of the norms name it.

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
    if _OUTPUT_TABLE in shapes:
        parts = {
            "masked-LM head" if title == _TIED_HEAD else title: part
            for title, part in parts.items()
        }
    return {
        re.sub(rf"{_NORM}$", _NORM_TITLES[norm_kind], title): parameters
        for title, parameters in parts.items()
        if parameters
    }


def counts_by_part(
    shapes: Mapping[str, jax.ShapeDtypeStruct], norm_kind: NormKind = "layer"
) -> dict[str, int]:
    """Return the number of parameters in each part of the model; see `parameters_by_part`."""
    parts = parameters_by_part(shapes, norm_kind)
    return {title: count(parameters) for title, parameters in parts.items()}


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
    final_norm: dict[NormPlacement, int] = {"post": 0, "pre": _norm(encoder, hidden)}
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
            above += pooler if model.has_pooler else _prediction(model)
            above += _dense(hidden, len(model.scores))
        case _:
            assert_never(model.head_kind)
    return ParameterCounts(_embeddings(encoder), _layers(encoder), above)


def own_generator_parameters(generator: EncoderConfig) -> int:
    """Return the number of parameters that ELECTRA's generator does not share."""
    counts = parameter_counts(ModelConfig(generator, "masked_lm"))
    projection = 0
    if generator.embedding_dim is not None:
        projection = _dense(
            generator.embedding_dim, generator.hidden_dim, bias=generator.dense_bias
        )
    return projection + counts.layers + counts.above


def _dense(inputs: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * outputs + (outputs if bias else 0)


def _norm(encoder: EncoderConfig, dim: int) -> int:
    return 2 * dim if encoder.norm_bias else dim


def _prediction(model: ModelConfig) -> int:
    """Return the number of parameters in a classifier's prediction head, if it has one."""
    encoder = model.encoder
    match encoder.classifier_transform:
        case "pooler":
            return 0
        case "prediction":
            dim = encoder.hidden_dim
            return _dense(dim, dim, bias=encoder.dense_bias) + _norm(encoder, dim)
        case _:
            assert_never(encoder.classifier_transform)


def _embeddings(encoder: EncoderConfig) -> int:
    dim = encoder.table_dim
    rows = encoder.vocab_size + encoder.num_segments
    match encoder.positions:
        case "learned":
            rows += encoder.position_offset + encoder.max_positions
        case "sinusoidal" | "rotary":
            pass
        case _:
            assert_never(encoder.positions)
    count = rows * dim
    if encoder.embedding_norm:
        count += _norm(encoder, dim)
    if encoder.embedding_dim is not None:
        count += _dense(dim, encoder.hidden_dim, bias=encoder.dense_bias)
    return count


def _layers(encoder: EncoderConfig) -> int:
    hidden, layers, groups = encoder.hidden_dim, encoder.num_layers, encoder.num_groups
    bias, norm = encoder.dense_bias, _norm(encoder, hidden)
    attention = 4 * _dense(hidden, hidden, bias=bias) + norm
    inner = (2 if encoder.gated_ffn else 1) * _dense(hidden, encoder.ffn_dim, bias=bias)
    ffn = inner + _dense(encoder.ffn_dim, hidden, bias=bias) + norm
    match encoder.sharing:
        case "none":
            return layers * (attention + ffn) - (0 if encoder.first_norm else norm)
        case "all":
            return groups * (attention + ffn)
        case "attention":
            return groups * attention + layers * ffn
        case "ffn":
            return layers * attention + groups * ffn
        case _:
            assert_never(encoder.sharing)


def _masked_lm(encoder: EncoderConfig) -> int:
    dim, count = encoder.table_dim, encoder.vocab_size
    if encoder.head_transform:
        count += _dense(encoder.hidden_dim, dim, bias=encoder.dense_bias) + _norm(encoder, dim)
    return count if encoder.tied_output else count + encoder.vocab_size * dim
