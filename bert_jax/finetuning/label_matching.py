"""Check that a model from elsewhere fits a task, and match its labels with the task's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp

from bert_jax.finetuning.registry import kind_of_task
from bert_jax.finetuning.task_data import HeadConfig
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters

_UNNAMED = re.compile(r"LABEL_\d+")


def check_head(task: TaskConfig, model: ModelConfig, work_dir: Path) -> None:
    """Raise ValueError if the model's head does not fit the config's task.

    Called before the files are read, whose labels would otherwise seem to be wrong.
    """
    kind = kind_of_task(task)
    if model.head != kind.head.name:
        raise ValueError(
            f"the model of {work_dir} is for {model.head} ({model.problem}), the config's section "
            f"{kind.section!r} for {kind.head.name}: give the config of a task that it has learned"
        )


def check_positions(max_length: int, model: ModelConfig, work_dir: Path) -> None:
    """Raise ValueError if the task's sequences are longer than the model can read."""
    positions = model.encoder.max_positions
    if max_length > positions:
        raise ValueError(
            f"max_length={max_length}, but the model of {work_dir} has {positions} "
            f"positions: set --config.max_length to that at most"
        )


def score_places(
    model: ModelConfig, head: HeadConfig, names: Sequence[str], work_dir: Path
) -> tuple[int, ...] | None:
    """Return the index of the model's score for each label of the task; None if the order is equal.

    By name, else by name whatever its case: models of one task have their labels in any order.
    Labels without a name (LABEL_0, ...) are taken in the task's; see `unnamed`.

    head, names: the task's; `names` is what its files call the labels of `head`.

    Raises:
      ValueError: the model has another kind of head or other labels.
    """
    if (model.head, model.problem) != (head.head.name, head.problem):
        raise ValueError(
            f"the model of {work_dir} is for {model.head} ({model.problem}), the config for "
            f"{head.head.name} ({head.problem}): give the config of a task that it has learned"
        )
    same_size = len(model.labels) == len(head.labels)
    numbers = head.problem == "regression"  # their names do not matter
    if model.labels == head.labels or (numbers and same_size):
        return None
    for called in (head.labels, names):
        for name_of in (str, str.casefold):
            theirs, wanted = ([name_of(x) for x in each] for each in (model.labels, called))
            if len(set(theirs)) == len(theirs) and sorted(theirs) == sorted(wanted):
                return tuple(map(theirs.index, wanted))
    if same_size and unnamed(model):
        return None
    raise ValueError(
        f"the model of {work_dir} tells the labels {', '.join(map(repr, model.labels))}, the "
        f"config {', '.join(map(repr, head.labels))}: give the config of a task that it has learned"
    )


def unnamed(model: ModelConfig) -> bool:
    """Return whether all labels have Hugging Face's default names, LABEL_0 and so on."""
    return len(model.labels) > 1 and all(map(_UNNAMED.fullmatch, model.labels))


def unnamed_told(model: ModelConfig, head: HeadConfig) -> list[str]:
    """Return a line about the meaning of labels without names."""
    if not unnamed(model) or model.labels == head.labels:
        return []
    taken = (f"{label} for {name!r}" for label, name in zip(model.labels, head.labels, strict=True))
    return [f"NOTE  the model's labels have no names: {', '.join(taken)}, the task's order"]


def with_scores_in_order(params: Parameters, places: Sequence[int]) -> Parameters:
    """Return a classifier's parameters with its scores in the order of `places`."""
    chosen = jnp.array(places)
    parts = ("classifier.kernel", "classifier.bias")
    return {**params, **{name: jnp.take(params[name], chosen, axis=-1) for name in parts}}
