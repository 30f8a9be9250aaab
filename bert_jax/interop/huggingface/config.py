"""Read and write Hugging Face's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from bert_jax.interop.huggingface.families import architecture_of, family_named, family_of
from bert_jax.interop.huggingface.family import Family
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, Problem
from bert_jax.models.options import Activation
from bert_jax.objectives import SentencePairs
from bert_jax.tokenizers.tokenizer import Tokenizer

# A dict from Hugging Face's names for activations to ours. The tanh variants differ only in how a
# constant is rounded.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "quick_gelu": "quick_gelu",
}
_HIDDEN_ACT: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
    "quick_gelu": "quick_gelu",
}
# A dict from Hugging Face's names for problem types to ours. A problem type specifies the meaning
# of the scores.
PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
# A key that we add to config.json to record the task that a sentence-pair head was trained on.
PAIRS_KEY = "sentence_pairs"


def read_encoder(content: Mapping[str, Any], where: str) -> EncoderConfig:
    """Return the encoder that a config.json describes.

    Args:
      content: the parsed file.
      where: the file name to use in messages.

    Raises:
      ValueError: the family is not supported, or `EncoderConfig` cannot represent the architecture.
    """
    _check_names(content, where)
    family = family_named(content, where)
    content = {**family.defaults, **content}
    for key, supported in family.only.items():
        if content.get(key) not in (None, supported):
            raise ValueError(f"{where}: {key} is {content[key]!r}; only {supported!r} is supported")
    missing = [hf_name for hf_name in family.fields.values() if hf_name not in content]
    if missing:
        raise ValueError(f"{where}: not a {family.title} config: it lacks {', '.join(missing)}")
    activation = content[family.activation]
    if str(activation) not in ACTIVATIONS:
        raise ValueError(
            f"{where}: {family.activation} is {activation!r}; expected one of "
            f"{', '.join(ACTIVATIONS)}"
        )
    values = {
        name: _number(content, hf_name, name, where) for name, hf_name in family.fields.items()
    }
    if family.head_activation and content[family.head_activation] != activation:
        raise ValueError(
            f"{where}: {family.head_activation} is {content[family.head_activation]!r}; only the "
            f"value of {family.activation}, {activation!r}, is supported"
        )
    values |= {
        **family.constants,
        "activation": ACTIVATIONS[activation],
        "tied_output": content.get("tie_word_embeddings") is not False,
    }
    try:
        return EncoderConfig(**values | family.read(content))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _check_names(content: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if a key that specifies classes or labels has a value of the wrong type."""
    classes, labels = content.get("architectures"), content.get("id2label")
    for key in ("model_type", "problem_type"):
        if not isinstance(content.get(key, ""), str | None):
            raise ValueError(f"{where}: {key} is {content[key]!r}; expected a string")
    several = classes if isinstance(classes, list) else [classes]
    if not all(isinstance(name, str | None) for name in several):
        raise ValueError(f"{where}: architectures is {classes!r}; expected an array of strings")
    if labels is None:
        return
    if not isinstance(labels, dict) or not all(
        number.isdecimal() and len(number) < 10 and isinstance(name, str | int | float)
        for number, name in zip(map(str, labels), labels.values(), strict=True)
    ):
        raise ValueError(
            f"{where}: id2label is {str(labels)[:200]}; expected an object that maps numbers to "
            "labels"
        )


def _number(content: Mapping[str, Any], hf_name: str, name: str, where: str) -> Any:
    """Return a value converted to our field's type; integer fields reject floats such as 32.0."""
    # embedding_dim is an integer field too, although it defaults to None.
    value, whole = content[hf_name], not isinstance(getattr(EncoderConfig, name), float)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{where}: {hf_name} is {value!r}; expected {expected}")
    return value if whole else _as_float(value, f"{where}: {hf_name}")


def _as_float(value: float, place: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{place} is {str(value)[:20]}..., which is too large") from None


def read_labels(content: Mapping[str, Any], scores: int) -> tuple[str, ...]:
    """Return names for a classifier's scores, taken from `id2label` where possible.

    Scores that are not in `id2label` are called LABEL_0, LABEL_1 and so on. A repeated name gets
    its score's number as a suffix, so that all names are unique.

    Args:
      content: the parsed config.json.
      scores: the number of scores.
    """
    names = {int(number): str(name) for number, name in (content.get("id2label") or {}).items()}
    labels: list[str] = []
    for number in range(scores):
        name = names.get(number, f"LABEL_{number}")
        if not name.strip():
            raise ValueError(
                f"id2label has an empty name for score {number}. Specify names for all {scores} "
                "scores with --labels NAME NAME ..."
            )
        while name in labels:
            name = f"{name}_{number}"
        labels.append(name)
    return tuple(labels)


def head_dropout(content: Mapping[str, Any], family: Family, head: str) -> float:
    """Return the dropout rate before a classifier; it defaults to the rate inside the layers."""
    content = {**family.defaults, **content}
    key = family.dropout_before(head)
    own = content.get(key)
    if own is not None and (isinstance(own, bool) or not isinstance(own, (int, float))):
        raise ValueError(f"{key} is {own!r}; expected a number")
    return _as_float(content[family.fields["hidden_dropout"]] if own is None else own, key)


def read_problem(content: Mapping[str, Any], scores: int) -> Problem:
    """Return the meaning of a classifier's scores, with the same default as in Hugging Face."""
    problem = content.get("problem_type")
    if problem is None:
        return "regression" if scores == 1 else "single_label"
    if problem not in PROBLEMS:
        raise ValueError(
            f"problem_type is {problem!r}; expected one of {', '.join(PROBLEMS)}. Specify the "
            f"scores' meaning with --problem {', '.join(PROBLEMS.values())}"
        )
    return PROBLEMS[problem]


def read_pairs(content: Mapping[str, Any], family: Family) -> SentencePairs:
    """Return the task of a sentence-pair head, which defaults to the family's usual task."""
    pairs: SentencePairs = content.get(PAIRS_KEY, family.pairs_are)
    if pairs not in get_args(SentencePairs):
        raise ValueError(
            f"{PAIRS_KEY} is {pairs!r}; expected one of {', '.join(get_args(SentencePairs))}"
        )
    return pairs


def positions_fit(encoder: EncoderConfig, tokenizer: Tokenizer) -> bool:
    """Return whether transformers would use the same position embeddings as in training.

    transformers has no config key for the position offset; it computes the offset from the padding
    id.
    """
    return encoder.position_offset in (0, tokenizer.pad_id + 1)


def write_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the content of a config.json from which transformers builds the same model.

    The file omits two things that the model.json of a fine-tuning run records: the name of the
    negative class if there is only one label, and how texts were read.

    Args:
      config: the model's config.
      tokenizer: the tokenizer, for the ids of its special tokens.

    Raises:
      ValueError: transformers would use position embeddings other than the trained ones.
    """
    encoder, family, pad_id = config.encoder, family_of(config.encoder), tokenizer.pad_id
    if not positions_fit(encoder, tokenizer):
        raise ValueError(
            f"model.position_offset={encoder.position_offset}: the tokenizer's padding id is "
            f"{pad_id}, so positions in Hugging Face's {family.title} would begin at {pad_id + 1} "
            "instead of the trained offset. Export the model with --format onnx or stablehlo"
        )
    content: dict[str, Any] = {
        "architectures": [architecture_of(config)],
        "model_type": family.model_type,
        **{hf_name: getattr(encoder, name) for name, hf_name in family.fields.items()},
        **{key: _HIDDEN_ACT[encoder.activation] for key in family.activation_keys},
        "pad_token_id": pad_id,
        "tie_word_embeddings": encoder.tied_output,
        "dtype": "float32",
        **family.write(encoder),
    }
    content |= dict.fromkeys(family.first_keys, tokenizer.cls_id)
    content |= dict.fromkeys(family.last_keys, tokenizer.sep_id)
    if config.labels:
        content["id2label"] = {str(number): name for number, name in enumerate(config.labels)}
        content["label2id"] = {name: number for number, name in enumerate(config.labels)}
    if config.classifier is not None and config.classifier.dropout:
        # If the head and the layers share a key, the key is already set to the layers' rate.
        content.setdefault(family.dropout_before(config.head), config.head_dropout)
    if config.classifier is not None and len(config.classifier.problems) > 1:
        names = {name: hf_name for hf_name, name in PROBLEMS.items()}
        content["problem_type"] = names[config.problem]
    return content
