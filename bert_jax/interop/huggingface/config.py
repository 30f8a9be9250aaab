"""Read and write Hugging Face's config.json, and derive our model from it.

The names and shapes of the tensors decide what the config leaves open.
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
from bert_jax.models.config import Activation, EncoderConfig
from bert_jax.models.model import ClassifierHead, ModelConfig, Problem, classifier_heads
from bert_jax.objectives import SentencePairs
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.validation import check_label_names

# Theirs to ours. The tanh forms differ from each other in the rounding of a constant.
ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
# Theirs to ours.
PROBLEMS: dict[str, Problem] = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}
# Ours, which theirs have no word for: what a head of pairs tells apart.
PAIRS_KEY = "sentence_pairs"


def read_encoder(content: Mapping[str, Any], where: str) -> EncoderConfig:
    """The encoder that a config.json describes.

    Args:
      content: the file, parsed.
      where: the file's name, for messages.

    Raises:
      ValueError: it describes none of the families, or one that `EncoderConfig` cannot be.
    """
    _check_names(content, where)
    family = family_named(content, where)
    content = {**family.defaults, **content}
    for key, understood in family.only.items():
        if content.get(key) not in (None, understood):
            raise ValueError(
                f"{where}: {key} is {content[key]!r}; only {understood!r} is understood"
            )
    missing = [theirs for theirs in family.fields.values() if theirs not in content]
    if missing:
        raise ValueError(f"{where}: not a {family.title}'s config: it lacks {', '.join(missing)}")
    activation = content[family.activation]
    if str(activation) not in ACTIVATIONS:
        raise ValueError(
            f"{where}: {family.activation} is {activation!r}; understood are "
            f"{', '.join(ACTIVATIONS)}"
        )
    values = {ours: _number(content, theirs, ours, where) for ours, theirs in family.fields.items()}
    values |= {**family.constants, "activation": ACTIVATIONS[activation]}
    try:
        return EncoderConfig(**values | family.read(content))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}: {error}") from error


def _check_names(content: Mapping[str, Any], where: str) -> None:
    """Raise ValueError if a key that names classes or labels has a wrong type."""
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


def _number(content: Mapping[str, Any], theirs: str, ours: str, where: str) -> Any:
    """A value of the type that our field has; JSON's 32.0 is no whole number here."""
    # embedding_dim's default is None, and a number where it is given.
    value, whole = content[theirs], not isinstance(getattr(EncoderConfig, ours), float)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        expected = "a whole number" if whole else "a number"
        raise ValueError(f"{where}: {theirs} is {value!r}; expected {expected}")
    return value if whole else _as_float(value, f"{where}: {theirs}")


def _as_float(value: float, place: str) -> float:
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{place} is {str(value)[:20]}..., which is too large") from None


def read_labels(content: Mapping[str, Any], scores: int) -> tuple[str, ...]:
    """The names of a classifier's `scores`, as `id2label` has them, else LABEL_0, LABEL_1, ...

    Of equal names the later ones get their number: every score keeps a name of its own.
    """
    names = {int(number): str(name) for number, name in (content.get("id2label") or {}).items()}
    labels: list[str] = []
    for number in range(scores):
        name = names.get(number, f"LABEL_{number}")
        if not name.strip():
            raise ValueError(
                f"id2label has an empty name for score {number}. Name all {scores} scores with "
                "--labels NAME NAME ..."
            )
        while name in labels:
            name = f"{name}_{number}"
        labels.append(name)
    return tuple(labels)


def head_dropout(content: Mapping[str, Any], family: Family, head: str) -> float:
    """Dropout before a classifier: its own rate if that is set, else that of the layers."""
    content = {**family.defaults, **content}
    key = family.dropout_before(head)
    own = content.get(key)
    if own is not None and (isinstance(own, bool) or not isinstance(own, (int, float))):
        raise ValueError(f"{key} is {own!r}; expected a number")
    return _as_float(content[family.fields["hidden_dropout"]] if own is None else own, key)


def read_problem(content: Mapping[str, Any], scores: int) -> Problem:
    """What a classifier's scores mean; as their class guesses where the file does not say."""
    told = content.get("problem_type")
    if told is None:
        return "regression" if scores == 1 else "single_label"
    if told not in PROBLEMS:
        raise ValueError(
            f"problem_type is {told!r}; expected one of {', '.join(PROBLEMS)}. Specify the scores' "
            f"meaning with --problem {', '.join(PROBLEMS.values())}"
        )
    return PROBLEMS[told]


def read_pairs(content: Mapping[str, Any], family: Family) -> SentencePairs:
    """What a head of pairs tells apart: as the file says, else as the family's release."""
    told = content.get(PAIRS_KEY, family.pairs_are)
    if told not in get_args(SentencePairs):
        raise ValueError(
            f"{PAIRS_KEY} is {told!r}; expected one of {', '.join(get_args(SentencePairs))}"
        )
    found: SentencePairs = told
    return found


def positions_fit(encoder: EncoderConfig, tokenizer: Tokenizer) -> bool:
    """Whether `transformers` reads the positions that were learned, which it has no key for."""
    return encoder.position_offset in (0, tokenizer.pad_id + 1)


def write_config(config: ModelConfig, tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of a config.json that `transformers` builds the same model from.

    It has no place for what a fine-tuning run's model.json says besides the model: what the
    opposite of a single label is called, and how texts were read.

    tokenizer: whose ids of special tokens are written.
    """
    encoder, family, pad_id = config.encoder, family_of(config.encoder), tokenizer.pad_id
    if not positions_fit(encoder, tokenizer):
        raise ValueError(
            f"model.position_offset={encoder.position_offset}, but the tokenizer's padding has the "
            f"id {pad_id}: Hugging Face's {family.title} begins its positions at {pad_id + 1} "
            "then, and would read others than were learned. Export it with --format onnx or "
            "stablehlo"
        )
    content: dict[str, Any] = {
        "architectures": [architecture_of(config)],
        "model_type": family.model_type,
        **{theirs: getattr(encoder, ours) for ours, theirs in family.fields.items()},
        family.activation: _HIDDEN_ACT[encoder.activation],
        "pad_token_id": pad_id,
        "tie_word_embeddings": True,
        "dtype": "float32",
        **family.write(encoder),
    }
    if family.names_bounds:
        content |= {"bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}
    if config.labels:
        content["id2label"] = {str(number): name for number, name in enumerate(config.labels)}
        content["label2id"] = {name: number for number, name in enumerate(config.labels)}
    if config.classifier is not None and config.classifier.dropout:
        # If their head has no rate of its own, this key already holds the rate of the layers.
        content.setdefault(family.dropout_before(config.head), config.head_dropout)
    if config.classifier is not None and len(config.classifier.problems) > 1:
        names = {ours: theirs for theirs, ours in PROBLEMS.items()}
        content["problem_type"] = names[config.problem]
    return content


def _classifier_head(name: str) -> ClassifierHead | None:
    return next((head for head in classifier_heads() if head.name == name), None)


def _classifier_names() -> list[str]:
    """Return the heads whose dense layer they call `classifier`."""
    named = {
        kind.head.name: None
        for kind in task_kinds()
        if kind.huggingface is not None and kind.huggingface.classifier == "classifier"
    }
    return list(named)


_HIDDEN_ACT: dict[Activation, str] = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
# RoBERTa's classifier of sequences has two layers, and this is the last.
_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


def classifier_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the layer that gives a classifier's scores, [scores, ...]; None without one."""
    return next((shapes[name] for name in _CLASSIFIERS if name in shapes), None)


@dataclass(frozen=True)
class ImportOptions:
    """What is wanted of a source; by default all that it has.

    head: which one; None takes all that the tensors are. A classifier the source does not have is
      randomly initialized; what it has besides is left out.
    labels: of a randomly initialized classifier, or new names for that of the source.
    problem: what the scores of a classification mean; None takes the source's word, and one label
      of a new classifier for a regression.
    max_positions: keep the first ones of the position table only.
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
    """The encoder with the sizes that its tables have, where those may differ from the config."""
    family = family_of(encoder)
    rows = shapes.get(family.token_table, (encoder.vocab_size,))[0]
    if rows > encoder.vocab_size:
        notes.append(
            f"the token table has {rows:,} rows for a vocabulary of {encoder.vocab_size:,}: padded"
        )
        encoder = dataclasses.replace(encoder, vocab_size=rows)
    if max_positions is None:
        return encoder
    there = shapes.get(family.position_table)
    positions = there[0] - encoder.position_offset if there else encoder.max_positions
    if not 1 <= max_positions <= positions:
        raise ValueError(
            f"--max-positions is {max_positions}, the source has learned {positions}: expected 1 "
            "up to that number"
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
    """The model with the head asked for, or with all that the tensors are.

    Raises:
      ValueError: it is not told what a classifier is of, or a new one's labels.
    """
    labels, family, scores = options.labels, family_of(encoder), classifier_shape(shapes)
    found = options.head or _head_of(shapes, classes_of(content), family, directory)
    pooler = found != "encoder" or holds_pooler(family, shapes)
    head = _classifier_head(found)
    needs_labels = head is not None and head.labels is None and not labels
    if needs_labels:
        if scores is None or _another_task(content, found, family):
            raise ValueError(
                f"--head {found}: {directory} has no such classifier, so one is randomly "
                "initialized and needs the names of its labels: --labels NAME NAME ..."
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
        dropout = head_dropout(content, family, found) if with_dropout else 0.0
        return ModelConfig(encoder, found, labels, pooler, dropout, problem)
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
            f"--labels: {directory} has no classifier to give names to; for a new one add --head "
            f"with one of {', '.join(head.name for head in classifier_heads() if not head.labels)}"
        )
    names = read_labels(content, scores[0])
    return (
        f"--labels gives {len(labels)} names, but the classifier of {directory} has {len(names)} "
        f"scores ({', '.join(names)}); for a new one in its place add --head"
    )


def classifier_fits(
    content: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> bool:
    """Whether the source's classifier, if it has one, is the one that `config` wants."""
    scores = classifier_shape(shapes)
    if scores is None or config.head not in _classifier_names():
        return True
    family = family_of(config.encoder)
    return not _another_task(content, config.head, family) and scores[0] == len(config.scores)


def _another_task(content: Mapping[str, Any], head: str, family: Family) -> bool:
    """Whether config.json says that its classifier is of another kind than `head`."""
    kinds = map(family.architectures.get, _classifier_names())
    named = set(classes_of(content)).intersection(kinds)
    return bool(named) and family.architectures.get(head) not in named


def holds_pooler(family: Family, shapes: Collection[str]) -> bool:
    """Return whether tensors of these names include the pooler of a family's bare encoder."""
    return bool(family.pooler) and any(name.startswith(family.pooler) for name in shapes)


def _head_of(
    names: Collection[str], architectures: list[str], family: Family, directory: Path
) -> str:
    """The head that takes in most of what is there."""
    masked_lm = any(name.startswith(family.masked_lm) for name in names)
    next_sentence = any(family.pairs and name.startswith(family.pairs) for name in names)
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
        if heads.get(architecture) in _classifier_names():
            return heads[architecture]
    raise ValueError(
        f"{directory}: it has a classifier, and its config.json does not say of what "
        f"(architectures: {architectures}); add --head with one of {', '.join(_classifier_names())}"
    )
