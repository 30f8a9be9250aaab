"""Compute the number of a model's parameters arithmetically, without tracing the model."""

from __future__ import annotations

from dataclasses import dataclass

from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig


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
    above = 2 * hidden if encoder.norm == "pre" else 0
    pooler = _dense(hidden, hidden)
    match model.head:
        case "encoder":
            above += pooler if model.pooler else 0
        case "pretraining":
            above += _masked_lm(encoder) + pooler + _dense(hidden, 2)
        case "masked_lm":
            above += _masked_lm(encoder)
        case "next_sentence":
            above += pooler + _dense(hidden, 2)
        case "classification" | "multiple_choice":
            above += pooler + _dense(hidden, len(model.scores))
        case "tagging" | "span":
            above += _dense(hidden, len(model.scores))
    return ParameterCounts(_embeddings(encoder), _layers(encoder), above)


def _dense(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _embeddings(encoder: EncoderConfig) -> int:
    dim = encoder.table_dim
    rows = encoder.vocab_size + encoder.num_segments
    if encoder.positions == "learned":
        rows += encoder.position_offset + encoder.max_positions
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


def _masked_lm(encoder: EncoderConfig) -> int:
    dim = encoder.table_dim
    return _dense(encoder.hidden_dim, dim) + 2 * dim + encoder.vocab_size
