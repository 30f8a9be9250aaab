"""Describe Hugging Face's ALBERT: factorized embeddings, and layer groups that share parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.interop.huggingface.bert import FIELDS, ONLY, tables
from bert_jax.interop.huggingface.family import (
    Family,
    Refusal,
    classifier,
    dense,
    layer,
    norm,
    odd_encoder,
    whole_number,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig

ALBERT_LAYER = {
    "attention.query": "attention.query",
    "attention.key": "attention.key",
    "attention.value": "attention.value",
    "attention.output": "attention.dense",
    "ffn.up": "ffn",
    "ffn.down": "ffn_output",
}
ALBERT_LAYER_NORMS = {"attention_norm": "attention.LayerNorm", "ffn_norm": "full_layer_layer_norm"}


def _albert(config: ModelConfig) -> dict[str, str]:
    encoder = config.encoder
    names = tables("albert.")
    names |= dense("encoder.embeddings.projection", "albert.encoder.embedding_hidden_mapping_in")
    owners = sorted({encoder.parameter_owners(number)[0] for number in range(encoder.num_layers)})
    for group, owner in enumerate(owners):
        hf_prefix = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
        names |= layer(f"encoder.layers.{owner}", hf_prefix, ALBERT_LAYER, ALBERT_LAYER_NORMS)
    if config.has_pooler:
        names |= dense("pooler.dense", "albert.pooler")
    if config.head in ("pretraining", "masked_lm"):
        names["masked_lm.bias"] = "predictions.bias"
        names |= dense("masked_lm.transform", "predictions.dense")
        names |= norm("masked_lm.norm", "predictions.LayerNorm")
    if config.head == "pretraining":
        names |= dense("next_sentence", "sop_classifier.classifier")
    return names | classifier(config) if config.scores else names


def _read(content: Mapping[str, Any]) -> dict[str, Any]:
    return {"sharing": "all", "num_groups": whole_number(content, "num_hidden_groups")}


def _write(encoder: EncoderConfig) -> dict[str, Any]:
    groups = encoder.num_layers if encoder.sharing == "none" else encoder.num_groups
    return {"num_hidden_groups": groups, "inner_group_num": 1}


def _refusal(config: ModelConfig) -> Refusal | None:
    encoder = config.encoder
    if encoder.embedding_dim is None:
        return "model.embedding_dim=None", "always projects its embeddings"
    if encoder.sharing not in ("all", "none"):
        return f"model.sharing={encoder.sharing!r}", "supports only 'all' and 'none'"
    if encoder.num_segments == 0:
        return "model.num_segments=0", "has at least one segment"
    if encoder.position_offset or encoder.pooler_activation != "tanh":
        return (
            "model.position_offset or model.pooler_activation",
            "always uses 0 and 'tanh' for them",
        )
    return odd_encoder(config)


ALBERT = Family(
    model_type="albert",
    title="ALBERT",
    prefix="albert.",
    pretraining_classes={
        "encoder": "AlbertModel",
        "pretraining": "AlbertForPreTraining",
        "masked_lm": "AlbertForMaskedLM",
    },
    names=_albert,
    pooler="albert.pooler.",
    masked_lm="predictions.dense.",
    pairs="sop_classifier.",
    pairs_are="sentence_order",
    first_keys=("bos_token_id",),
    last_keys=("eos_token_id",),
    parts=("albert.pooler.", "predictions.", "sop_classifier.", "classifier.", "qa_outputs."),
    tied={
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    },
    fields=FIELDS | {"embedding_dim": "embedding_size"},
    defaults={
        "vocab_size": 30_000,
        "embedding_size": 128,
        "hidden_size": 4096,
        "num_hidden_layers": 12,
        "num_hidden_groups": 1,
        "num_attention_heads": 64,
        "intermediate_size": 16_384,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "attention_probs_dropout_prob": 0,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "classifier_dropout_prob": 0.1,
    },
    classifier_dropout="classifier_dropout_prob",
    only=ONLY | {"inner_group_num": 1},
    read=_read,
    write=_write,
    refusal=_refusal,
)
