"""A task out of a config file, asked of a model that learned it elsewhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp

from bert_jax.cli.config import load_config
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.task_data import HeadConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters

# What Hugging Face calls labels that nobody has named.
_UNNAMED = re.compile(r"label_\d+")


def given_task(work_dir: Path, file: str, overrides: Sequence[str]) -> FinetuneConfig:
    """The config of a fine-tuning run of the model in `work_dir`, which is only to be judged."""
    own = [f"--config.{name}={work_dir}" for name in ("init_from", "work_dir")]
    return load_config(FinetuneConfig, file, [*overrides, *own])


def check_positions(config: FinetuneConfig, model: ModelConfig, work_dir: Path) -> None:
    """Raises ValueError if the task's sequences are longer than the model can read."""
    positions = model.encoder.max_positions
    if config.max_length > positions:
        raise ValueError(
            f"max_length={config.max_length}, but the model of {work_dir} has {positions} "
            f"positions: set --config.max_length to that at most"
        )


def score_places(
    model: ModelConfig, head: HeadConfig, names: Sequence[str], work_dir: Path
) -> tuple[int, ...] | None:
    """Which of the model's scores is which label of the task; None if they are in its order.

    By name, upper case or not: models of one task have their labels in any order. Labels without a
    name (LABEL_0, ...) are taken in the task's.

    head, names: the task's; `names` is what its files call the labels of `head`.

    Raises:
      ValueError: the model has another kind of head or other labels.
    """
    if (model.head, model.problem) != (head.head, head.problem):
        raise ValueError(
            f"the model of {work_dir} is for {model.head} ({model.problem}), the config for "
            f"{head.head} ({head.problem}): give the config of a task that it has learned"
        )
    if model.labels == head.labels or head.problem == "regression":
        return None
    theirs = [label.casefold() for label in model.labels]
    for called in (head.labels, names):
        wanted = [label.casefold() for label in called]
        if sorted(wanted) == sorted(theirs):
            return tuple(map(theirs.index, wanted))
    if len(theirs) == len(head.labels) and all(map(_UNNAMED.fullmatch, theirs)):
        return None
    raise ValueError(
        f"the model of {work_dir} tells the labels {', '.join(map(repr, model.labels))}, the "
        f"config {', '.join(map(repr, head.labels))}: give the config of a task that it has learned"
    )


def with_scores_in_order(params: Parameters, places: Sequence[int]) -> Parameters:
    """The parameters of a classifier whose scores stand as `score_places` found them."""
    chosen = jnp.array(places)
    parts = ("classifier.kernel", "classifier.bias")
    return {**params, **{name: jnp.take(params[name], chosen, axis=-1) for name in parts}}
