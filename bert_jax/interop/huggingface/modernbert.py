"""Describe Hugging Face's ModernBERT: rotary positions, local attention and gated layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bert_jax.interop.huggingface.family import (
    Family,
    Refusal,
    dense,
    norm,
    unsupported_values,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig

GLOBAL, LOCAL = "full_attention", "sliding_attention"
# The keys for the bases of the rotary angles in files written by transformers before version 5,
# with their default values.
THETAS = {GLOBAL: ("global_rope_theta", 160_000.0), LOCAL: ("local_rope_theta", 10_000.0)}
BIASES = ("attention_bias", "mlp_bias", "classifier_bias")
# Values of our config fields for which Hugging Face's config.json has no key.
CONSTANTS: dict[str, Any] = {
    "num_segments": 0,
    "positions": "rotary",
    "norm": "pre",
    "first_norm": False,
    "gated_ffn": True,
    "classifier_transform": "prediction",
}


def _names(config: ModelConfig) -> dict[str, str]:
    encoder = config.encoder
    names = {"encoder.embeddings.token": "model.embeddings.tok_embeddings.weight"}
    names |= norm("encoder.embeddings.norm", "model.embeddings.norm")
    for number in range(encoder.num_layers):
        ours, hf = f"encoder.layers.{number}", f"model.layers.{number}"
        if number or encoder.first_norm:
            names |= norm(f"{ours}.attention_norm", f"{hf}.attn_norm")
        for part in ("query", "key", "value"):
            names |= dense(f"{ours}.attention.{part}", f"{hf}.attn.Wqkv")
        names |= dense(f"{ours}.attention.output", f"{hf}.attn.Wo")
        names |= norm(f"{ours}.ffn_norm", f"{hf}.mlp_norm")
        for part in ("gate", "up"):
            names |= dense(f"{ours}.ffn.{part}", f"{hf}.mlp.Wi")
        names |= dense(f"{ours}.ffn.down", f"{hf}.mlp.Wo")
    names |= norm("encoder.final_norm", "model.final_norm")
    if config.head == "masked_lm":
        names |= dense("masked_lm.transform", "head.dense") | norm("masked_lm.norm", "head.norm")
    if config.scores:
        names |= dense("prediction.dense", "head.dense") | norm("prediction.norm", "head.norm")
    if not encoder.dense_bias:
        names = {ours: hf for ours, hf in names.items() if not _is_bias_of(ours, norms=False)}
    if not encoder.norm_bias:
        names = {ours: hf for ours, hf in names.items() if not _is_bias_of(ours, norms=True)}
    if config.head == "masked_lm":
        names["masked_lm.bias"] = "decoder.bias"
    return names | dense("classifier", "classifier") if config.scores else names


def _is_bias_of(name: str, *, norms: bool) -> bool:
    return name.endswith(".bias") and name.endswith("norm.bias") == norms


def _read(content: Mapping[str, Any]) -> dict[str, Any]:
    if len({content[key] for key in BIASES}) > 1:
        listed = ", ".join(f"{key}={content[key]!r}" for key in BIASES)
        raise ValueError(f"{listed}: expected the same value for all of them")
    thetas = {kind: _theta(content, kind) for kind in THETAS}
    kinds = content.get("layer_types")
    every = content["global_attn_every_n_layers"] if kinds is None else _distance(kinds)
    values: dict[str, Any] = {
        "dense_bias": content["attention_bias"],
        "norm_bias": content["norm_bias"],
        "pooling": content["classifier_pooling"],
        "rotary_theta": thetas[GLOBAL],
        "global_every": every,
    }
    if every == 1:
        return values
    local = None if thetas[LOCAL] == thetas[GLOBAL] else thetas[LOCAL]
    window = 2 * (content["local_attention"] // 2) + 1
    return {**values, "attention_window": window, "local_rotary_theta": local}


def _theta(content: Mapping[str, Any], kind: str) -> float:
    """Return the base of the rotary angles in layers of this kind."""
    key, default = THETAS[kind]
    parameters = (content.get("rope_parameters") or {}).get(kind) or {}
    scaling = content.get("rope_scaling") or {}
    both: list[Mapping[str, Any]] = [parameters, scaling]
    names = {place.get(name) for place in both for name in ("rope_type", "type")}
    if not names <= {None, "default"}:
        raise ValueError(f"rope_type is {sorted(filter(None, names))}; only 'default' is supported")
    theta = parameters.get("rope_theta", content.get(key, default))
    # The first releases used the global base for local layers without a base.
    if theta is None and kind == LOCAL:
        return _theta(content, GLOBAL)
    if isinstance(theta, bool) or not isinstance(theta, (int, float)):
        raise ValueError(f"{key} is {theta!r}; expected a number")
    return float(theta)


def _distance(kinds: Sequence[str]) -> int:
    """Return the distance between layers with global attention."""
    distances = range(1, len(kinds) + 1)
    for every in distances:
        if all(kind == _kind(number, every) for number, kind in enumerate(kinds)):
            return every
    raise ValueError(
        f"layer_types is {list(kinds)}; expected {GLOBAL!r} in the first and every n-th layer, and "
        f"{LOCAL!r} in all others"
    )


def _kind(layer: int, every: int) -> str:
    return LOCAL if layer % every else GLOBAL


def _write(encoder: EncoderConfig) -> dict[str, Any]:
    local = encoder.rotary_theta
    if encoder.local_rotary_theta is not None:
        local = encoder.local_rotary_theta
    thetas = {GLOBAL: encoder.rotary_theta, LOCAL: local}
    return {
        **dict.fromkeys(BIASES, encoder.dense_bias),
        "norm_bias": encoder.norm_bias,
        "classifier_pooling": encoder.pooling,
        "layer_types": [
            _kind(number, encoder.global_every) for number in range(encoder.num_layers)
        ],
        "global_attn_every_n_layers": encoder.global_every,
        "local_attention": (encoder.attention_window or 129) - 1,
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
        "embedding_dropout": encoder.hidden_dropout,
        "mlp_dropout": encoder.hidden_dropout,
        "decoder_bias": True,
    }


def _refusal(config: ModelConfig) -> Refusal | None:
    encoder = config.encoder
    supported = CONSTANTS | {
        "norm_kind": "layer",
        "embedding_norm": True,
        "head_transform": True,
        "embedding_dim": None,
        "sharing": "none",
        "pooler_dropout": False,
    }
    if refusal := unsupported_values(encoder, supported):
        return refusal
    if config.head == "encoder" and config.pooler:
        return "a pooler on the bare encoder", "has none"
    return None


MODERNBERT = Family(
    model_type="modernbert",
    title="ModernBERT",
    prefix="model.",
    pretraining_classes={"encoder": "ModernBertModel", "masked_lm": "ModernBertForMaskedLM"},
    names=_names,
    pooler="",
    masked_lm="decoder.",
    pairs="",
    parts=("head.", "decoder.", "classifier."),
    tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    fields={
        "vocab_size": "vocab_size",
        "hidden_dim": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "ffn_dim": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "embedding_dropout",
        "attention_dropout": "attention_dropout",
        "layer_norm_epsilon": "norm_eps",
        "initializer_range": "initializer_range",
    },
    activation="hidden_activation",
    head_activation="classifier_activation",
    defaults={
        "vocab_size": 50_368,
        "hidden_size": 768,
        "num_hidden_layers": 22,
        "num_attention_heads": 12,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "norm_eps": 1e-5,
        "norm_bias": False,
        "initializer_range": 0.02,
        "hidden_activation": "gelu",
        "classifier_activation": "gelu",
        "classifier_pooling": "cls",
        "classifier_dropout": 0.0,
        "global_attn_every_n_layers": 3,
        "local_attention": 128,
        **dict.fromkeys(BIASES, False),
    },
    constants=CONSTANTS,
    only={"decoder_bias": True},
    first_keys=("bos_token_id", "cls_token_id"),
    last_keys=("eos_token_id", "sep_token_id"),
    blocks={
        "attention.query": (0, 3),
        "attention.key": (1, 3),
        "attention.value": (2, 3),
        "ffn.gate": (0, 2),
        "ffn.up": (1, 2),
    },
    classifier="classifier",
    token_name="embeddings.tok_embeddings.weight",
    read=_read,
    write=_write,
    refusal=_refusal,
)
