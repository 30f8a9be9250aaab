"""Which model of ours a Hugging Face config and the names and shapes of its tensors make."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.interop.huggingface_config import head_dropout, read_labels, read_problem
from bert_jax.interop.huggingface_family import Family
from bert_jax.interop.huggingface_names import classes_of, family_of, heads_of
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import CLASSIFIERS, Head, ModelConfig, Problem
from bert_jax.validation import check_label_names

# RoBERTa's classifier of sequences has two layers, and this is the last.
_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


def classifier_shape(shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of the layer that gives a classifier's scores, [scores, ...]; None without one."""
    return next((shapes[name] for name in _CLASSIFIERS if name in shapes), None)


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a source; by default all that it has.

    head: which one; None takes all that the tensors are. A classifier the source does not have is
      randomly initialized; what it has besides is left out.
    labels: of a randomly initialized classifier, or new names for that of the source.
    problem: what the scores of a classification mean; None takes the source's word, and one label
      of a new classifier for a regression.
    max_positions: keep the first ones of the position table only.
    """

    head: Head | None = None
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
    wanted: Wanted,
    directory: Path,
) -> ModelConfig:
    """The model with the head asked for, or with all that the tensors are.

    Raises:
      ValueError: it is not told what a classifier is of, or a new one's labels.
    """
    labels, family, scores = wanted.labels, family_of(encoder), classifier_shape(shapes)
    found = wanted.head or _head_of(shapes, classes_of(content), family, directory)
    pooler = found != "encoder" or holds_pooler(family, shapes)
    if found in ("classification", "tagging") and not labels:
        if scores is None or _another_task(content, found, family):
            raise ValueError(
                f"--head {found}: {directory} has no such classifier, so one is randomly "
                "initialized and needs the names of its labels: --labels NAME NAME ..."
            )
    if labels and not wanted.head and len(labels) != (scores or (0,))[0]:
        raise ValueError(_wrong_labels(content, shapes, labels, directory))
    try:
        if found in ("classification", "tagging") and not labels:
            assert scores is not None
            labels = read_labels(content, found, scores[0])
        problem = wanted.problem or "single_label"
        if found == "classification" and not wanted.problem:
            problem = read_problem(content, len(labels))
        dropout = head_dropout(content, family, found) if found in CLASSIFIERS else 0.0
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
            "with one of classification, tagging"
        )
    names = read_labels(content, "classification", scores[0])
    return (
        f"--labels gives {len(labels)} names, but the classifier of {directory} has {len(names)} "
        f"scores ({', '.join(names)}); for a new one in its place add --head"
    )


def classifier_fits(
    content: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> bool:
    """Whether the source's classifier, if it has one, is the one that `config` wants."""
    scores = classifier_shape(shapes)
    if scores is None or config.head not in CLASSIFIERS:
        return True
    family = family_of(config.encoder)
    return not _another_task(content, config.head, family) and scores[0] == len(config.scores)


def _another_task(content: Mapping[str, Any], head: Head, family: Family) -> bool:
    """Whether config.json says that its classifier is of another kind than `head`."""
    kinds = map(family.architectures.get, CLASSIFIERS)
    named = set(classes_of(content)).intersection(kinds)
    return bool(named) and family.architectures[head] not in named


def holds_pooler(family: Family, shapes: Collection[str]) -> bool:
    """Return whether tensors of these names include the pooler of a family's bare encoder."""
    return bool(family.pooler) and any(name.startswith(family.pooler) for name in shapes)


def _head_of(
    names: Collection[str], architectures: list[str], family: Family, directory: Path
) -> Head:
    """The head that takes in most of what is there."""
    masked_lm = any(name.startswith(family.masked_lm) for name in names)
    next_sentence = any(family.pairs and name.startswith(family.pairs) for name in names)
    if masked_lm or next_sentence:
        if masked_lm and next_sentence:
            return "pretraining"
        return "masked_lm" if masked_lm else "next_sentence"
    if any(name.startswith("qa_outputs.") for name in names):
        return "span"
    if not any(name.startswith("classifier.") for name in names):
        return "encoder"
    heads = heads_of(family)
    for architecture in architectures:
        if heads.get(architecture) in CLASSIFIERS:
            return heads[architecture]
    raise ValueError(
        f"{directory}: it has a classifier, and its config.json does not say of what "
        f"(architectures: {architectures}); add --head with one of {', '.join(CLASSIFIERS)}"
    )
