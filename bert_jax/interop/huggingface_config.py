"""Hugging Face's config.json of a BERT, and ours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bert_jax.interop.huggingface_names import ARCHITECTURES
from bert_jax.models.config import Activation, EncoderConfig
from bert_jax.models.model import CLASSIFIERS, FIXED_LABELS, Head, ModelConfig, Problem

# Ours to theirs, where the values are the same.
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
# Theirs to ours. The tanh forms differ from each other in the rounding of a constant.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
# What their class takes when the file does not say; old files leave some of these out.
DEFAULTS = {
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
    "max_position_embeddings": 512,
    "hidden_act": "gelu",
}
# What their class can do and ours cannot: the one value that is understood.
ONLY = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
    "is_encoder_decoder": False,
}

# Theirs to ours.
PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def read_object(file: Path) -> dict[str, Any]:
    """A file that holds a JSON object; ValueError if it does not."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: expected a JSON object")
    return content


def read_encoder(content: Mapping[str, Any], where: str) -> EncoderConfig:
    """The encoder that a config.json describes.

    Args:
      content: the file, parsed.
      where: the file's name, for messages.

    Raises:
      ValueError: it describes no BERT, or one that `EncoderConfig` cannot be.
    """
    kind = content.get("model_type", "bert")
    if kind != "bert":
        raise ValueError(
            f"{where}: model_type is {kind!r}; expected 'bert', the one architecture that is "
            "understood"
        )
    content = {**DEFAULTS, **content}
    for key, understood in ONLY.items():
        if content.get(key) not in (None, understood):
            raise ValueError(
                f"{where}: {key} is {content[key]!r}; only {understood!r} is understood"
            )
    missing = [theirs for theirs in FIELDS.values() if theirs not in content]
    if missing:
        raise ValueError(f"{where}: not a BERT's config: it lacks {', '.join(missing)}")
    if str(content["hidden_act"]) not in ACTIVATIONS:
        raise ValueError(
            f"{where}: hidden_act is {content['hidden_act']!r}; understood are "
            f"{', '.join(ACTIVATIONS)}"
        )
    values = {ours: _number(content, theirs, ours, where) for ours, theirs in FIELDS.items()}
    try:
        return EncoderConfig(**values, activation=ACTIVATIONS[content["hidden_act"]])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _number(content: Mapping[str, Any], theirs: str, ours: str, where: str) -> Any:
    """A value of the type that our field has; JSON's 32.0 is no whole number here."""
    value, whole = content[theirs], isinstance(getattr(EncoderConfig, ours), int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{where}: {theirs} is {value!r}; expected {expected}")
    return value if whole else float(value)


def read_labels(content: Mapping[str, Any], head: Head, scores: int) -> tuple[str, ...]:
    """The names of a classifier's `scores`, as `id2label` has them, else LABEL_0, LABEL_1, ...

    Of equal names the later ones get their number: every score keeps a name of its own.
    """
    if head in FIXED_LABELS:
        return ()
    told = content.get("id2label") or {}
    if not isinstance(told, dict) or not all(str(number).isdigit() for number in told):
        raise ValueError(f"id2label is {told!r}; expected numbers and their names")
    names = {int(number): str(name) for number, name in told.items()}
    labels: list[str] = []
    for number in range(scores):
        name = names.get(number, f"LABEL_{number}")
        while name in labels:
            name = f"{name}_{number}"
        labels.append(name)
    return tuple(labels)


def head_dropout(content: Mapping[str, Any]) -> float:
    """Dropout before a classifier: `classifier_dropout` if it is set, else that of the layers."""
    own = content.get("classifier_dropout")
    if own is not None and (isinstance(own, bool) or not isinstance(own, (int, float))):
        raise ValueError(f"classifier_dropout is {own!r}; expected a number")
    return float({**DEFAULTS, **content}["hidden_dropout_prob"] if own is None else own)


def read_problem(content: Mapping[str, Any], scores: int) -> Problem:
    """What a classifier's scores mean; as their class guesses where the file does not say."""
    told = content.get("problem_type")
    if told is None:
        return "regression" if scores == 1 else "single_label"
    if told not in PROBLEMS:
        raise ValueError(f"problem_type is {told!r}; expected one of {', '.join(PROBLEMS)}")
    return PROBLEMS[told]


def write_config(config: ModelConfig, pad_id: int) -> dict[str, Any]:
    """The content of a config.json that `transformers` builds the same model from.

    It has no place for what a fine-tuning run's model.json says besides the model: what the
    opposite of a single label is called, and how texts were read.

    pad_id: the tokenizer's id of `[PAD]`.
    """
    encoder = config.encoder
    content: dict[str, Any] = {
        "architectures": [ARCHITECTURES[config.head]],
        "model_type": "bert",
        **{theirs: getattr(encoder, ours) for ours, theirs in FIELDS.items()},
        "hidden_act": "gelu" if encoder.activation == "gelu" else "gelu_pytorch_tanh",
        "pad_token_id": pad_id,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": True,
        "dtype": "float32",
    }
    if config.labels:
        content["id2label"] = {str(number): name for number, name in enumerate(config.labels)}
        content["label2id"] = {name: number for number, name in enumerate(config.labels)}
    if config.head in CLASSIFIERS:
        content["classifier_dropout"] = config.head_dropout
    if config.head == "classification":
        names = {ours: theirs for theirs, ours in PROBLEMS.items()}
        content["problem_type"] = names[config.problem]
    return content
