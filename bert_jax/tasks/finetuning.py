"""The fine-tuning task that a model's head is for."""

from __future__ import annotations

from collections.abc import Mapping

from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import Head, ModelConfig
from bert_jax.tasks.classification import Classification
from bert_jax.tasks.classifier_task import ClassifierTask
from bert_jax.tasks.multiple_choice import MultipleChoice
from bert_jax.tasks.span import Span
from bert_jax.tasks.tagging import Tagging

TASKS: Mapping[Head, type[ClassifierTask]] = {
    task.head: task for task in (Classification, MultipleChoice, Tagging, Span)
}


def task_of(config: ModelConfig, compute: ComputeConfig) -> ClassifierTask:
    """The task of `config.head`.

    Raises:
      ValueError: a head that is not fine-tuned.
    """
    if config.head not in TASKS:
        raise ValueError(
            f"head={config.head!r} is not fine-tuned; expected one of the heads {', '.join(TASKS)}"
        )
    return TASKS[config.head](config, compute)
