"""Check that a model fits a task, and match the model's labels to the task's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp

from bert_jax.finetuning.registry import kind_of_task
from bert_jax.finetuning.task_data import HeadConfig
from bert_jax.finetuning.task_kind import TaskConfig
from bert_jax.inference.uses import use_of
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters

_UNNAMED = re.compile(r"LABEL_\d+")


def no_task_of(work_dir: Path, model: ModelConfig, origin: Mapping[str, str]) -> str:
    """Return the error message for a model whose directory does not describe a fine-tuning task.

    Args:
      work_dir: the model's work directory.
      model: the encoder and its head.
      origin: where the parameters come from, as recorded in `model.json`.
    """
    use = use_of(model, origin)
    if model.classifier is not None:
        return (
            f"{work_dir}: this model {use.does}, but the task that it was fine-tuned on is not "
            "recorded. Specify the config of its task with --config, such as sst2 or table, and a "
            "labeled file with --data."
        )
    scores = ""
    if "bj.FillMask" in use.classes:
        scores = "score it with `bj.score_text` or `bj.score_minimal_pairs`, or "
    return (
        f"{work_dir}: this model was not fine-tuned on a task. It {use.does}: {scores}fine-tune it "
        "first with `bj.finetune`."
    )


def check_head(task: TaskConfig, model: ModelConfig, work_dir: Path) -> None:
    """Raise ValueError if the model's head does not fit the config's task.

    Call this before reading the task's files. Otherwise, the first error would be about the labels
    in the files, although the head is the problem.
    """
    kind = kind_of_task(task)
    if model.head != kind.head.name:
        raise ValueError(
            f"{work_dir}: this model {use_of(model, {}).does}, but the config's section "
            f"{kind.section!r} needs a model with the head {kind.head.name!r}. Specify the config "
            "of the task that the model was fine-tuned on."
        )


def check_positions(max_length: int, model: ModelConfig, work_dir: Path) -> None:
    """Raise ValueError if the task's sequences are longer than the model can read."""
    positions = model.encoder.max_positions
    if max_length > positions:
        raise ValueError(
            f"max_length={max_length}: the model in {work_dir} has {positions} positions. Set "
            f"--config.max_length to at most {positions}."
        )


def score_order(
    model: ModelConfig, head: HeadConfig, names: Sequence[str], work_dir: Path
) -> tuple[int, ...] | None:
    """Return the index of the model's score for each task label, or None to keep the model's order.

    Labels are matched by name, since their order varies among published models. Case is ignored
    only if the labels do not match otherwise. Labels without names (LABEL_0, ...) are assumed to be
    in the task's order; see `unnamed`.

    Args:
      model: the encoder and its head.
      head: the task's head.
      names: the labels as written in the task's files.
      work_dir: the model's work directory, for error messages.

    Raises:
      ValueError: the model has a different kind of head or different labels.
    """
    if (model.head, model.problem) != (head.head.name, head.problem):
        raise ValueError(
            f"{work_dir}: the model is for {model.head} ({model.problem}), but the config is for "
            f"{head.head.name} ({head.problem}). Specify the config of the task that the model was "
            "fine-tuned on."
        )
    same_size = len(model.labels) == len(head.labels)
    # The names of regression outputs are not compared.
    numbers = head.problem == "regression"
    if model.labels == head.labels or (numbers and same_size):
        return None
    for task_labels in (head.labels, names):
        for normalize in (str, str.casefold):
            source = [normalize(label) for label in model.labels]
            wanted = [normalize(label) for label in task_labels]
            if len(set(source)) == len(source) and sorted(source) == sorted(wanted):
                return tuple(map(source.index, wanted))
    if same_size and unnamed(model):
        return None
    raise ValueError(
        f"{work_dir}: the model's labels are {', '.join(map(repr, model.labels))}, but the "
        f"config's are {', '.join(map(repr, head.labels))}. Specify the config of the task that "
        "the model was fine-tuned on."
    )


def unnamed(model: ModelConfig) -> bool:
    """Return whether all labels have Hugging Face's default names, LABEL_0 and so on."""
    return len(model.labels) > 1 and all(map(_UNNAMED.fullmatch, model.labels))


def notes_on_unnamed_labels(model: ModelConfig, head: HeadConfig) -> list[str]:
    """Return a note on the meaning assumed for unnamed labels, or [] if labels are named."""
    if not unnamed(model) or model.labels == head.labels:
        return []
    pairs = zip(model.labels, head.labels, strict=True)
    meanings = ", ".join(f"{label} = {name!r}" for label, name in pairs)
    return [f"NOTE  the model's labels have no names; the task's order is assumed: {meanings}"]


def with_scores_in_order(params: Parameters, order: Sequence[int]) -> Parameters:
    """Return a classifier's parameters, permuted so that its scores are in the given order."""
    indices = jnp.array(order)
    names = ("classifier.kernel", "classifier.bias")
    return {**params, **{name: jnp.take(params[name], indices, axis=-1) for name in names}}
