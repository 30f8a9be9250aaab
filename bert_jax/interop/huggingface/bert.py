"""Describe Hugging Face's BERT, RoBERTa and DistilBERT, whose layers share no parameters.

RoBERTa differs from BERT in its heads and positions. DistilBERT has no segments and no pooler, but
its classifier has an additional dense layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

# Dicts that map our names to Hugging Face's names.
BERT_LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
}
BERT_LAYER_NORMS = {"attention_norm": "attention.output.LayerNorm", "ffn_norm": "output.LayerNorm"}
FIELDS = {
    "vocab_size": "vocab_size",
    "hidden_dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "hidden_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "layer_norm_epsilon": "layer_norm_eps",
    "initializer_range": "initializer_range",
}
# Older config files omit some of these keys.
DEFAULTS = {
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
}
ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
}


def tables(prefix: str, *, segments: bool = True) -> dict[str, str]:
    """Return a dict that maps our names for the embeddings to Hugging Face's names."""
    embeddings, hf_embeddings = "encoder.embeddings", f"{prefix}embeddings"
    names = {
        f"{embeddings}.token": f"{hf_embeddings}.word_embeddings.weight",
        f"{embeddings}.position": f"{hf_embeddings}.position_embeddings.weight",
    }
    if segments:
        names[f"{embeddings}.segment"] = f"{hf_embeddings}.token_type_embeddings.weight"
    return names | norm(f"{embeddings}.norm", f"{hf_embeddings}.LayerNorm")


def encoder_names(config: ModelConfig, prefix: str) -> dict[str, str]:
    """Map our names for an encoder without a projection to Hugging Face's names."""
    names = tables(prefix)
    for number in range(config.encoder.num_layers):
        hf_prefix = f"{prefix}encoder.layer.{number}"
        names |= layer(f"encoder.layers.{number}", hf_prefix, BERT_LAYER, BERT_LAYER_NORMS)
    return names


def _bert(config: ModelConfig) -> dict[str, str]:
    names = encoder_names(config, "bert.")
    if config.has_pooler:
        names |= dense("pooler.dense", "bert.pooler.dense")
    if config.head in ("pretraining", "masked_lm"):
        names["masked_lm.bias"] = "cls.predictions.bias"
        names |= dense("masked_lm.transform", "cls.predictions.transform.dense")
        names |= norm("masked_lm.norm", "cls.predictions.transform.LayerNorm")
    if config.head in ("pretraining", "next_sentence"):
        names |= dense("next_sentence", "cls.seq_relationship")
    return names | classifier(config) if config.scores else names


def _refuses(config: ModelConfig, offset: bool) -> Refusal | None:
    encoder = config.encoder
    if encoder.embedding_dim is not None or encoder.sharing != "none":
        return "model.embedding_dim or model.sharing", "has neither"
    if encoder.num_segments == 0:
        return "model.num_segments=0", "has at least one segment"
    if encoder.pooler_activation != "tanh":
        return f"model.pooler_activation={encoder.pooler_activation!r}", "supports only 'tanh'"
    if bool(encoder.position_offset) != offset:
        return f"model.position_offset={encoder.position_offset}", "uses a different offset"
    return odd_encoder(config)


def _refuses_roberta(config: ModelConfig) -> Refusal | None:
    # RobertaLMHead calls gelu() regardless of hidden_act.
    if config.head == "masked_lm" and config.encoder.activation != "gelu":
        activation = f"model.activation={config.encoder.activation!r}"
        return (
            f"{activation} with head='masked_lm'",
            "always uses 'gelu' in that head",
        )
    return _refuses(config, offset=True)


BERT = Family(
    model_type="bert",
    title="BERT",
    prefix="bert.",
    pretraining_classes={
        "encoder": "BertModel",
        "pretraining": "BertForPreTraining",
        "masked_lm": "BertForMaskedLM",
        "next_sentence": "BertForNextSentencePrediction",
    },
    names=_bert,
    pooler="bert.pooler.",
    masked_lm="cls.predictions.transform.",
    pairs="cls.seq_relationship.",
    parts=(
        "bert.pooler.",
        "cls.predictions.",
        "cls.seq_relationship.",
        "classifier.",
        "qa_outputs.",
    ),
    tied={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
    fields=FIELDS,
    defaults=DEFAULTS,
    only=ONLY,
    write=lambda encoder: {"position_embedding_type": "absolute"},
    refusal=lambda config: _refuses(config, offset=False),
)


def _roberta(config: ModelConfig) -> dict[str, str]:
    names = encoder_names(config, "roberta.")
    if config.head == "classification":
        # RoBERTa's classifier has a dense layer instead of the pooler.
        return (
            names
            | dense("pooler.dense", "classifier.dense")
            | dense("classifier", "classifier.out_proj")
        )
    if config.has_pooler:
        names |= dense("pooler.dense", "roberta.pooler.dense")
    if config.head == "masked_lm":
        names["masked_lm.bias"] = "lm_head.bias"
        names |= dense("masked_lm.transform", "lm_head.dense")
        names |= norm("masked_lm.norm", "lm_head.layer_norm")
    return names | classifier(config) if config.scores else names


def _roberta_positions(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return our position fields; RoBERTa counts positions from the padding id plus one."""
    offset = whole_number(content, "pad_token_id") + 1
    return {"position_offset": offset, "max_positions": content["max_position_embeddings"] - offset}


def _write_roberta(encoder: EncoderConfig) -> dict[str, Any]:
    return {
        "max_position_embeddings": encoder.max_positions + encoder.position_offset,
    }


ROBERTA = Family(
    model_type="roberta",
    title="RoBERTa",
    prefix="roberta.",
    pretraining_classes={
        "encoder": "RobertaModel",
        "masked_lm": "RobertaForMaskedLM",
    },
    names=_roberta,
    pooler="roberta.pooler.",
    masked_lm="lm_head.dense.",
    pairs="",
    parts=("roberta.pooler.", "lm_head.", "classifier.", "qa_outputs."),
    tied={
        "lm_head.decoder.weight": "roberta.embeddings.word_embeddings.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    fields=FIELDS,
    defaults=DEFAULTS | {"pad_token_id": 1},
    constants={"pooler_dropout": True},
    only=ONLY,
    read=_roberta_positions,
    write=_write_roberta,
    first_keys=("bos_token_id",),
    last_keys=("eos_token_id",),
    refusal=lambda config: _refuses_roberta(config),
)


DISTILBERT_LAYER = {
    "attention.query": "attention.q_lin",
    "attention.key": "attention.k_lin",
    "attention.value": "attention.v_lin",
    "attention.output": "attention.out_lin",
    "ffn.up": "ffn.lin1",
    "ffn.down": "ffn.lin2",
}
DISTILBERT_LAYER_NORMS = {"attention_norm": "sa_layer_norm", "ffn_norm": "output_layer_norm"}


def _distilbert(config: ModelConfig) -> dict[str, str]:
    names = tables("distilbert.", segments=False)
    for number in range(config.encoder.num_layers):
        prefix, hf_prefix = f"encoder.layers.{number}", f"distilbert.transformer.layer.{number}"
        names |= layer(prefix, hf_prefix, DISTILBERT_LAYER, DISTILBERT_LAYER_NORMS)
    if config.head == "masked_lm":
        names["masked_lm.bias"] = "vocab_projector.bias"
        names |= dense("masked_lm.transform", "vocab_transform")
        names |= norm("masked_lm.norm", "vocab_layer_norm")
    if config.has_pooler:
        names |= dense("pooler.dense", "pre_classifier")
    return names | classifier(config) if config.scores else names


def _refusal(config: ModelConfig) -> Refusal | None:
    encoder = config.encoder
    if encoder.embedding_dim is not None or encoder.sharing != "none":
        return "model.embedding_dim or model.sharing", "has neither"
    if encoder.num_segments:
        return f"model.num_segments={encoder.num_segments}", "has none"
    if encoder.position_offset or encoder.layer_norm_epsilon != 1e-12:
        return (
            "model.position_offset or model.layer_norm_epsilon",
            "always uses 0 and 1e-12 for them",
        )
    if config.head == "encoder" and config.pooler:
        return "a pooler on the bare encoder", "has a pooler only in some classifiers"
    if config.has_pooler and encoder.pooler_activation != "relu":
        return f"model.pooler_activation={encoder.pooler_activation!r}", "supports only 'relu'"
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
    pretraining_classes={
        "encoder": "DistilBertModel",
        "masked_lm": "DistilBertForMaskedLM",
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
