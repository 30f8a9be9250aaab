"""Count the parameters of a model, and of each of its parts."""

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
      norm_kind: the kind of norm, for the titles of the norms; see `EncoderConfig`.

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
    """Return how many parameters ELECTRA's generator does not share with the discriminator."""
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
    """Return the number of parameters in a classifier's prediction head, or 0 if it has none."""
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
