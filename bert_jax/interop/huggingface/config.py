"""Read and write Hugging Face's config.json, and convert it to a model's config.

Settings that the file omits are inferred from the names and shapes of the tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from bert_jax.finetuning.registry import task_kinds
from bert_jax.interop.huggingface.families import (
    architecture_of,
    classes_of,
    family_named,
    family_of,
    heads_of,
)
from bert_jax.interop.huggingface.family import Family
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ClassifierHead, ModelConfig, Problem, classifier_heads
from bert_jax.models.options import Activation
from bert_jax.objectives import SentencePairs
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_label_names

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
# A dict from Hugging Face's names for problem types to ours. A problem type says what the scores
# mean.
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
    """Return the dropout rate before a classifier, which defaults to the rate inside the layers."""
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
    """Return whether transformers would use the position embeddings that were trained.

    transformers has no key for the offset; it computes the offset from the padding id.
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
        # If the head shares a key with the layers, the key already holds the layers' rate.
        content.setdefault(family.dropout_before(config.head), config.head_dropout)
    if config.classifier is not None and len(config.classifier.problems) > 1:
        names = {name: hf_name for hf_name, name in PROBLEMS.items()}
        content["problem_type"] = names[config.problem]
    return content


def _classifier_head(name: str) -> ClassifierHead | None:
    return next((head for head in classifier_heads() if head.name == name), None)


def _classifier_names(family: Family) -> list[str]:
    """Return the heads whose dense layer Hugging Face calls `classifier`."""
    named = {
        kind.head.name: None
        for kind in task_kinds()
        if kind.huggingface is not None
        and (family.classifier or kind.huggingface.classifier) == "classifier"
    }
    return list(named)


_HIDDEN_ACT: dict[Activation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
    "tanh": "tanh",
    "quick_gelu": "quick_gelu",
}
# The last layer of a classifier; RoBERTa's sequence classifier has two layers.
_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


def classifier_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """Return the shape [scores, ...] of the classifier's last layer, or None if there is none."""
    return next((shapes[name] for name in _CLASSIFIERS if name in shapes), None)


@dataclass(frozen=True)
class ImportOptions:
    """Options for an import; by default, everything in the source is imported.

    Attributes:
      head: the head to import; None imports all heads of the source. If the source does not have
        the head, it is randomly initialized; other heads of the source are left out.
      labels: the label names for a randomly initialized classifier, or new names for the labels of
        the source's classifier.
      problem: the meaning of a classifier's scores; None keeps the source's setting, and a
        new classifier with one label is then used for regression.
      max_positions: the number of positions to keep, counted from the first; None keeps all.
    """

    head: str | None = None
    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    max_positions: int | None = None

    def __post_init__(self) -> None:
        check_label_names(self.labels, "--labels")


def with_table_sizes(
    encoder: EncoderConfig,
    shapes: Mapping[str, tuple[int, ...]],
    max_positions: int | None,
    notes: list[str],
) -> EncoderConfig:
    """Return the encoder with the actual table sizes, which may differ from the configured ones.

    Args:
      encoder: the encoder that config.json describes.
      shapes: the shapes of the tensors.
      max_positions: the number of positions to keep; None keeps all.
      notes: the list to append remarks to.

    Raises:
      ValueError: the source has fewer positions than `max_positions`.
    """
    family = family_of(encoder)
    rows = shapes.get(family.token_table, (encoder.vocab_size,))[0]
    if rows > encoder.vocab_size:
        notes.append(
            f"the token table is padded: it has {rows:,} rows for a vocabulary of "
            f"{encoder.vocab_size:,}"
        )
        encoder = dataclasses.replace(encoder, vocab_size=rows)
    if max_positions is None:
        return encoder
    table = shapes.get(family.position_table)
    positions = table[0] - encoder.position_offset if table else encoder.max_positions
    if not 1 <= max_positions <= positions:
        raise ValueError(
            f"--max-positions {max_positions}: expected a number from 1 to {positions}, the number "
            "of positions in the source"
        )
    notes.append(f"the first {max_positions:,} of {positions:,} positions are kept")
    return dataclasses.replace(encoder, max_positions=max_positions)


def model_config(
    content: Mapping[str, Any],
    encoder: EncoderConfig,
    shapes: Mapping[str, tuple[int, ...]],
    options: ImportOptions,
    directory: Path,
) -> ModelConfig:
    """Return the config of a model with the requested head, or with all heads that have tensors.

    Raises:
      ValueError: the classifier's kind or a new classifier's labels are not specified.
    """
    labels, family, scores = options.labels, family_of(encoder), classifier_shape(shapes)
    name = options.head or _head_of(shapes, classes_of(content), family, directory)
    pooler = name != "encoder" or holds_pooler(family, shapes)
    head = _classifier_head(name)
    needs_labels = head is not None and head.labels is None and not labels
    if needs_labels:
        if scores is None or _another_task(content, name, family):
            raise ValueError(
                f"--head {name}: {directory} has no such classifier, so a new one would be "
                "randomly initialized. Name its labels with --labels NAME NAME ..."
            )
    if labels and not options.head and len(labels) != (scores or (0,))[0]:
        raise ValueError(_wrong_labels(content, shapes, labels, directory))
    try:
        if needs_labels:
            assert scores is not None
            labels = read_labels(content, scores[0])
        problem = options.problem or "single_label"
        if head is not None and len(head.problems) > 1 and not options.problem:
            problem = read_problem(content, len(labels))
        with_dropout = head is not None and head.dropout
        dropout = head_dropout(content, family, name) if with_dropout else 0.0
        return ModelConfig(encoder, name, labels, pooler, dropout, problem)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


def _wrong_labels(
    content: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    labels: tuple[str, ...],
    directory: Path,
) -> str:
    scores = classifier_shape(shapes)
    if scores is None:
        return (
            f"--labels: {directory} has no classifier. To add one, set --head to one of "
            f"{', '.join(head.name for head in classifier_heads() if not head.labels)}"
        )
    names = read_labels(content, scores[0])
    return (
        f"--labels gives {len(labels)} names, but the classifier in {directory} has {len(names)} "
        f"scores ({', '.join(names)}). To replace the classifier, add --head"
    )


def classifier_fits(
    content: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> bool:
    """Return whether `config` can use the source's classifier; True if the source has none."""
    scores = classifier_shape(shapes)
    if scores is None or config.head not in _classifier_names(family_of(config.encoder)):
        return True
    family = family_of(config.encoder)
    return not _another_task(content, config.head, family) and scores[0] == len(config.scores)


def _another_task(content: Mapping[str, Any], head: str, family: Family) -> bool:
    """Return whether config.json names a kind of classifier other than `head`."""
    kinds = map(family.architectures.get, _classifier_names(family))
    named = set(classes_of(content)).intersection(kinds)
    return bool(named) and family.architectures.get(head) not in named


def holds_pooler(family: Family, shapes: Collection[str]) -> bool:
    """Return whether these tensor names include the pooler of the family's bare encoder."""
    return bool(family.pooler) and any(name.startswith(family.pooler) for name in shapes)


def _head_of(
    names: Collection[str], architectures: list[str], family: Family, directory: Path
) -> str:
    """Infer the head from the tensor names or, if they are ambiguous, from the architectures."""
    masked_lm = any(name.startswith(family.masked_lm) for name in names)
    next_sentence = any(family.pairs and name.startswith(family.pairs) for name in names)
    if any(family.replaced_token and name.startswith(family.replaced_token) for name in names):
        return "replaced_token"
    if masked_lm or next_sentence:
        if masked_lm and next_sentence:
            return "pretraining"
        return "masked_lm" if masked_lm else "next_sentence"
    for kind in task_kinds():
        classifier = kind.huggingface and kind.huggingface.classifier
        if classifier != "classifier" and any(name.startswith(f"{classifier}.") for name in names):
            return kind.head.name
    if not any(name.startswith("classifier.") for name in names):
        return "encoder"
    heads = heads_of(family)
    for architecture in architectures:
        if heads.get(architecture) in _classifier_names(family):
            return heads[architecture]
    raise ValueError(
        f"{directory}: config.json does not specify the kind of classifier (architectures: "
        f"{architectures}). Set --head to one of {', '.join(_classifier_names(family))}"
    )
