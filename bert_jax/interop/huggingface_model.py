"""Which model of ours a Hugging Face config and the names and shapes of its tensors make."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.interop.huggingface_config import head_dropout, read_labels, read_problem
from bert_jax.interop.huggingface_names import (
    ARCHITECTURES,
    ENCODER,
    POSITION_TABLE,
    TOKEN_TABLE,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import CLASSIFIERS, Head, ModelConfig, Problem

CLASSIFIER = "classifier.weight"


@dataclass(frozen=True)
class Wanted:
    """What is wanted of a source; by default all that it has.

    head: which one; None takes all that the tensors are. A classifier the source does not have is
      drawn anew; what it has besides is left out.
    labels: of a classifier that is drawn anew, or new names for that of the source.
    problem: what the scores of a classification mean; None takes the source's word, and one label
      of a new classifier for a regression.
    max_positions: keep the first ones of the position table only.
    """

    head: Head | None = None
    labels: tuple[str, ...] = ()
    problem: Problem | None = None
    max_positions: int | None = None


def with_table_sizes(
    encoder: EncoderConfig,
    shapes: Mapping[str, tuple[int, ...]],
    max_positions: int | None,
    notes: list[str],
) -> EncoderConfig:
    """The encoder with the sizes that its tables have, where those may differ from the config."""
    rows = shapes.get(TOKEN_TABLE, (encoder.vocab_size,))[0]
    if rows > encoder.vocab_size:
        notes.append(
            f"the token table has {rows:,} rows for a vocabulary of {encoder.vocab_size:,}: padded"
        )
        encoder = dataclasses.replace(encoder, vocab_size=rows)
    positions = shapes.get(POSITION_TABLE, (encoder.max_positions,))[0]
    if max_positions is None:
        return encoder
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
    labels = wanted.labels
    found = wanted.head or _head_of(shapes, _architectures(content), directory)
    pooler = found != "encoder" or f"{ENCODER}pooler.dense.weight" in shapes
    if found in ("classification", "tagging") and not labels:
        weight = shapes.get(CLASSIFIER)
        if weight is None or _another_task(content, found):
            raise ValueError(
                f"--head {found}: {directory} has no such classifier, so one is drawn anew and "
                "needs the names of its scores: --labels NAME NAME ..."
            )
    if labels and not wanted.head and len(labels) != shapes.get(CLASSIFIER, (0,))[0]:
        raise ValueError(_wrong_labels(content, shapes, labels, directory))
    try:
        if found in ("classification", "tagging") and not labels:
            labels = read_labels(content, found, shapes[CLASSIFIER][0])
        problem = wanted.problem or "single_label"
        if found == "classification" and not wanted.problem:
            problem = read_problem(content, len(labels))
        dropout = head_dropout(content) if found in CLASSIFIERS else 0.0
        return ModelConfig(encoder, found, labels, pooler, dropout, problem)
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


def _wrong_labels(
    content: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    labels: tuple[str, ...],
    directory: Path,
) -> str:
    if CLASSIFIER not in shapes:
        return (
            f"--labels: {directory} has no classifier to give names to; for a new one add --head "
            "with one of classification, tagging"
        )
    names = read_labels(content, "classification", shapes[CLASSIFIER][0])
    return (
        f"--labels gives {len(labels)} names, but the classifier of {directory} has {len(names)} "
        f"scores ({', '.join(names)}); for a new one in its place add --head"
    )


def classifier_fits(
    content: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], config: ModelConfig
) -> bool:
    """Whether the source's classifier, if it has one, is the one that `config` wants."""
    weight = shapes.get(CLASSIFIER)
    if weight is None or config.head not in CLASSIFIERS:
        return True
    return not _another_task(content, config.head) and weight[0] == len(config.scores)


def _another_task(content: Mapping[str, Any], head: Head) -> bool:
    """Whether config.json says that its classifier is of another kind than `head`."""
    named = [a for a in _architectures(content) if a in map(ARCHITECTURES.get, CLASSIFIERS)]
    return bool(named) and ARCHITECTURES[head] not in named


def _architectures(content: Mapping[str, Any]) -> list[str]:
    found = content.get("architectures") or []
    return [found] if isinstance(found, str) else list(found)


def _head_of(names: Collection[str], architectures: list[str], directory: Path) -> Head:
    """The head that takes in most of what is there."""
    masked_lm = any(name.startswith("cls.predictions.transform.") for name in names)
    next_sentence = any(name.startswith("cls.seq_relationship.") for name in names)
    if masked_lm or next_sentence:
        if masked_lm and next_sentence:
            return "pretraining"
        return "masked_lm" if masked_lm else "next_sentence"
    if any(name.startswith("qa_outputs.") for name in names):
        return "span"
    if not any(name.startswith("classifier.") for name in names):
        return "encoder"
    heads: dict[str, Head] = {theirs: ours for ours, theirs in ARCHITECTURES.items()}  # type: ignore[misc]
    for architecture in architectures:
        if heads.get(architecture) in CLASSIFIERS:
            return heads[architecture]
    raise ValueError(
        f"{directory}: it has a classifier, and its config.json does not say of what "
        f"(architectures: {architectures}); add --head with one of {', '.join(CLASSIFIERS)}"
    )
