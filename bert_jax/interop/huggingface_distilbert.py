"""Hugging Face's DistilBERT: no segments, no pooler, a classifier with a dense layer of its own."""

from __future__ import annotations

from typing import Any

from bert_jax.interop.huggingface_bert import tables
from bert_jax.interop.huggingface_family import (
    Family,
    Refusal,
    classifier,
    dense,
    has_pooler,
    layer,
    norm,
    odd_encoder,
)
from bert_jax.models.model import ModelConfig

LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "ffn.up": "ffn.lin1",
    "ffn.down": "ffn.lin2",
}
LAYER_NORMS = {"attention_norm": "sa_layer_norm", "ffn_norm": "output_layer_norm"}


def _distilbert(config: ModelConfig) -> dict[str, str]:
    names = tables("distilbert.", segments=False)
    for number in range(config.encoder.num_layers):
        here, there = f"encoder.layers.{number}", f"distilbert.transformer.layer.{number}"
        names |= layer(here, there, LAYER, LAYER_NORMS)
    if config.head == "masked_lm":
        names["masked_lm.bias"] = "vocab_projector.bias"
        names |= dense("masked_lm.transform", "vocab_transform")
        names |= norm("masked_lm.norm", "vocab_layer_norm")
    if has_pooler(config):
        names |= dense("pooler.dense", "pre_classifier")
    return names | classifier(config) if config.scores else names


def _refusal(config: ModelConfig) -> Refusal | None:
    encoder = config.encoder
    if encoder.embedding_dim is not None or encoder.sharing != "none":
        return "model.embedding_dim or model.sharing", "has neither"
    if encoder.num_segments:
        return f"model.num_segments={encoder.num_segments}", "has none"
    if encoder.position_offset or encoder.layer_norm_epsilon != 1e-12:
        return "model.position_offset or model.layer_norm_epsilon", "has 0 and 1e-12"
    if config.head == "encoder" and config.pooler:
        return "a pooler on the bare encoder", "has none there"
    if has_pooler(config) and encoder.pooler_activation != "relu":
        return f"model.pooler_activation={encoder.pooler_activation!r}", "has 'relu' alone"
    return odd_encoder(config)


_CONSTANTS: dict[str, Any] = {
    "num_segments": 0,
    "layer_norm_epsilon": 1e-12,
    "pooler_activation": "relu",
}

DISTILBERT = Family(
    model_type="distilbert",
    title="DistilBERT",
    prefix="distilbert.",
    architectures={
        "encoder": "DistilBertModel",
        "masked_lm": "DistilBertForMaskedLM",
        "classification": "DistilBertForSequenceClassification",
        "multiple_choice": "DistilBertForMultipleChoice",
        "tagging": "DistilBertForTokenClassification",
        "span": "DistilBertForQuestionAnswering",
    },
    names=_distilbert,
    pooler="",
    masked_lm="vocab_transform.",
    pairs="",
    parts=("vocab_", "pre_classifier.", "classifier.", "qa_outputs."),
    tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
    fields={
        "vocab_size": "vocab_size",
        "hidden_dim": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "ffn_dim": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "hidden_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "initializer_range": "initializer_range",
    },
    activation="activation",
    defaults={
        "vocab_size": 30_522,
        "dim": 768,
        "n_layers": 6,
        "n_heads": 12,
        "hidden_dim": 3072,
        "max_position_embeddings": 512,
        "dropout": 0.1,
        "attention_dropout": 0.1,
        "initializer_range": 0.02,
        "activation": "gelu",
        "seq_classif_dropout": 0.2,
    },
    classifier_dropout="seq_classif_dropout",
    tagger_dropout="dropout",
    constants=_CONSTANTS,
    refusal=_refusal,
)
