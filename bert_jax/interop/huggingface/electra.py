"""Describe Hugging Face's ELECTRA: the discriminator, the generator and the classifiers.

The encoder is BERT's, with ALBERT's projection if the embeddings have a different dimension.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_jax.interop.huggingface.bert import DEFAULTS, FIELDS, ONLY, encoder_names
from bert_jax.interop.huggingface.family import (
    Family,
    Refusal,
    classifier,
    dense,
    norm,
    odd_encoder,
    whole_number,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig

# How ElectraForMultipleChoice computes the vector that it scores.
_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}


def _electra(config: ModelConfig) -> dict[str, str]:
    names = encoder_names(config, "electra.")
    if config.encoder.embedding_dim is not None:
        names |= dense("encoder.embeddings.projection", "electra.embeddings_project")
    if config.head == "masked_lm":
        names["masked_lm.bias"] = "generator_lm_head.bias"
        names |= dense("masked_lm.transform", "generator_predictions.dense")
        names |= norm("masked_lm.norm", "generator_predictions.LayerNorm")
    if config.head == "replaced_token":
        names |= dense("replaced_token.dense", "discriminator_predictions.dense")
        names |= dense("replaced_token.score", "discriminator_predictions.dense_prediction")
    if config.head == "classification":
        return (
            names
            | dense("pooler.dense", "classifier.dense")
            | dense("classifier", "classifier.out_proj")
        )
    if config.has_pooler:
        names |= dense("pooler.dense", "sequence_summary.summary")
    return names | classifier(config) if config.scores else names


def _read(content: Mapping[str, Any]) -> dict[str, Any]:
    for key, supported in _SUMMARY.items():
        if content[key] != supported:
            raise ValueError(f"{key} is {content[key]!r}; only {supported!r} is supported")
    same = whole_number(content, "embedding_size") == content["hidden_size"]
    return {"embedding_dim": None} if same else {}


def _write(encoder: EncoderConfig) -> dict[str, Any]:
    return {"embedding_size": encoder.table_dim, **_SUMMARY}


def _refusal(config: ModelConfig) -> Refusal | None:
    encoder = config.encoder
    if encoder.sharing != "none":
        return f"model.sharing={encoder.sharing!r}", "has layers with their own parameters"
    if encoder.embedding_dim == encoder.hidden_dim:
        return (
            f"model.embedding_dim={encoder.embedding_dim}",
            "projects embeddings only to a different dimension. Set it to None",
        )
    if encoder.num_segments == 0:
        return "model.num_segments=0", "has at least one segment"
    if encoder.position_offset:
        return f"model.position_offset={encoder.position_offset}", "always uses 0"
    if config.head == "masked_lm" and encoder.activation != "gelu":
        return (
            f"model.activation={encoder.activation!r} with head='masked_lm'",
            "always uses 'gelu' in that head",
        )
    if config.head == "encoder" and config.pooler:
        return "a pooler on the bare encoder", "has a pooler only in some classifiers"
    return odd_encoder(config)


ELECTRA = Family(
    model_type="electra",
    title="ELECTRA",
    prefix="electra.",
    pretraining_classes={
        "encoder": "ElectraModel",
        "masked_lm": "ElectraForMaskedLM",
        "replaced_token": "ElectraForPreTraining",
    },
    names=_electra,
    pooler="",
    masked_lm="generator_predictions.",
    pairs="",
    replaced_token="discriminator_predictions.",
    parts=(
        "generator_predictions.",
        "generator_lm_head.",
        "discriminator_predictions.",
        "sequence_summary.",
        "classifier.",
        "qa_outputs.",
    ),
    tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    fields=FIELDS | {"embedding_dim": "embedding_size"},
    defaults=DEFAULTS
    | _SUMMARY
    | {
        "vocab_size": 30_522,
        "embedding_size": 128,
        "hidden_size": 256,
        "num_hidden_layers": 12,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "summary_last_dropout": 0.1,
    },
    choice_dropout="summary_last_dropout",
    constants={"pooler_activation": "gelu", "pooler_dropout": True},
    only=ONLY,
    read=_read,
    write=_write,
    refusal=_refusal,
)
