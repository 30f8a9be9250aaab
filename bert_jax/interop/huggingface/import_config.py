"""Infer the config of an imported model.

The config depends on config.json, the names and shapes of the tensors, and the user's options.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.finetuning.registry import task_kinds
from bert_jax.interop.huggingface.config import head_dropout, read_labels, read_problem
from bert_jax.interop.huggingface.families import classes_of, family_of, heads_of
from bert_jax.interop.huggingface.family import Family
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ClassifierHead, ModelConfig, Problem, classifier_heads
from bert_jax.validation import check_label_names

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
      problem: the meaning of a classifier's scores; None keeps the source's setting or, for a new
        classifier with one label, selects regression.
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
    """Return the encoder config with the actual table sizes, which may differ from config.json.

    Args:
      encoder: the encoder that config.json describes.
      shapes: the shapes of the tensors.
      max_positions: the number of positions to keep; None keeps all.
      notes: the list to append notes to.

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


def _another_task(content: Mapping[str, Any], head: str, family: Family) -> bool:
    """Return whether config.json specifies a kind of classifier other than `head`."""
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
