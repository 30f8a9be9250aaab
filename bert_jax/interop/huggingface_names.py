"""Our parameters' names and those of Hugging Face's BERT."""

from __future__ import annotations

from bert_jax.interop.foreign import Origin
from bert_jax.models.model import ModelConfig

# Ours to theirs. A `.kernel` is [in, out] here and [out, in] there; nothing else is turned.
EMBEDDINGS = {
    "token": "word_embeddings.weight",
    "position": "position_embeddings.weight",
    "segment": "token_type_embeddings.weight",
    "norm.scale": "LayerNorm.weight",
    "norm.bias": "LayerNorm.bias",
}
LAYER = {
    "attention.query": "attention.self.query",
    "attention.key": "attention.self.key",
    "attention.value": "attention.self.value",
    "attention.output": "attention.output.dense",
    "ffn.up": "intermediate.dense",
    "ffn.down": "output.dense",
}
LAYER_NORMS = {"attention_norm": "attention.output.LayerNorm", "ffn_norm": "output.LayerNorm"}
MASKED_LM = {
    "bias": "bias",
    "transform.kernel": "transform.dense.weight",
    "transform.bias": "transform.dense.bias",
    "norm.scale": "transform.LayerNorm.weight",
    "norm.bias": "transform.LayerNorm.bias",
}
ARCHITECTURES = {
    "encoder": "BertModel",
    "pretraining": "BertForPreTraining",
    "masked_lm": "BertForMaskedLM",
    "next_sentence": "BertForNextSentencePrediction",
    "classification": "BertForSequenceClassification",
    "multiple_choice": "BertForMultipleChoice",
    "tagging": "BertForTokenClassification",
    "span": "BertForQuestionAnswering",
}
ENCODER = "bert."
POOLER = f"{ENCODER}pooler."
TOKEN_TABLE = f"{ENCODER}embeddings.word_embeddings.weight"
# The output layer's own copies of what it shares.
TIED = {
    "cls.predictions.decoder.weight": TOKEN_TABLE,
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
POSITION_TABLE = f"{ENCODER}embeddings.position_embeddings.weight"


def has_pooler(config: ModelConfig) -> bool:
    """Whether the model has a dense layer on its `[CLS]` vector."""
    if config.head == "encoder":
        return config.pooler
    return config.head not in ("masked_lm", "tagging", "span")


def origins(config: ModelConfig) -> dict[str, Origin]:
    """The tensor of `ARCHITECTURES[config.head]` behind each of our parameters.

    The encoder's begin with "bert."; BertModel, which is nothing else, leaves that out.

    Raises:
      ValueError: the model is none that Hugging Face's BERT can be.
    """
    _check_is_bert(config)
    names = {
        f"encoder.embeddings.{ours}": f"{ENCODER}embeddings.{theirs}"
        for ours, theirs in EMBEDDINGS.items()
    }
    for number in range(config.encoder.num_layers):
        here, there = f"encoder.layers.{number}", f"{ENCODER}encoder.layer.{number}"
        for ours, theirs in LAYER.items():
            names |= _dense(f"{here}.{ours}", f"{there}.{theirs}")
        for ours, theirs in LAYER_NORMS.items():
            names[f"{here}.{ours}.scale"] = f"{there}.{theirs}.weight"
            names[f"{here}.{ours}.bias"] = f"{there}.{theirs}.bias"
    if has_pooler(config):
        names |= _dense("pooler.dense", f"{ENCODER}pooler.dense")
    if config.head in ("pretraining", "masked_lm"):
        names |= {
            f"masked_lm.{ours}": f"cls.predictions.{theirs}" for ours, theirs in MASKED_LM.items()
        }
    if config.head in ("pretraining", "next_sentence"):
        names |= _dense("next_sentence", "cls.seq_relationship")
    if config.scores:
        names |= _dense("classifier", "qa_outputs" if config.head == "span" else "classifier")
    return {ours: Origin(theirs, ours.endswith(".kernel")) for ours, theirs in names.items()}


def _dense(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.kernel": f"{theirs}.weight", f"{ours}.bias": f"{theirs}.bias"}


def _check_is_bert(config: ModelConfig) -> None:
    for name, value in (("norm", "post"), ("positions", "learned")):
        found = getattr(config.encoder, name)
        if found != value:
            raise ValueError(
                f"model.{name}={found!r} is none of Hugging Face's BERT, which has {value!r} alone"
            )
    if config.encoder.num_segments == 0:
        raise ValueError("model.num_segments=0: Hugging Face's BERT has at least one segment")
