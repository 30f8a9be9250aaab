"""Maintain the registry of task kinds, the single source of truth for fine-tuning tasks."""

from __future__ import annotations

from bert_jax.finetuning.choices import CHOICES
from bert_jax.finetuning.glue import GLUE
from bert_jax.finetuning.sentences import SENTENCES
from bert_jax.finetuning.spans import SPANS
from bert_jax.finetuning.tags import TAGS
from bert_jax.finetuning.task_kind import TaskConfig, TaskKind
from bert_jax.inference.predict_tasks import EMBED, PRETRAINED, PredictTask
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, register_head
from bert_jax.tasks.finetuning import ClassifierTask

_KINDS: dict[str, TaskKind] = {
    kind.section: kind for kind in (GLUE, SENTENCES, CHOICES, TAGS, SPANS)
}


def register(kind: TaskKind) -> None:
    """Register a kind of task, so that its models can be trained, evaluated, used and exported.

    Raises:
      ValueError: another kind has the same section or config, another head has the same name, or
        another `predict` task has the same name.
    """
    if _KINDS.get(kind.section, kind) != kind:
        raise ValueError(
            f"section={kind.section!r}: another kind of task has this section. Choose another name"
        )
    for other in task_kinds():
        if other.config is kind.config and other != kind:
            raise ValueError(
                f"config={kind.config.__name__}: the task kind with section {other.section!r} "
                "already has this config class. Write a subclass of it"
            )
    if predict_tasks().get(kind.predict.name, kind.predict) != kind.predict:
        raise ValueError(
            f"predict={kind.predict.name!r}: another `predict` task has this name. Choose "
            "another name"
        )
    register_head(kind.head)
    _KINDS[kind.section] = kind


def task_kinds() -> tuple[TaskKind, ...]:
    """Return all kinds of tasks."""
    return tuple(_KINDS.values())


def task_sections() -> dict[str, type[TaskConfig]]:
    """Return a dict that maps the key of each task section in a config to its dataclass."""
    return {kind.section: kind.config for kind in task_kinds()}


def kind_of_task(task: TaskConfig) -> TaskKind:
    """Return the kind of task that a config section describes.

    Raises:
      ValueError: no registered kind has this config class.
    """
    for kind in task_kinds():
        if type(task) is kind.config:
            return kind
    raise ValueError(
        f"task={task!r:.100}: {type(task).__name__} is not the config of a registered task kind. "
        "Register the kind with bert_jax.finetuning.registry.register"
    )


def kind_of_head(head: str) -> TaskKind | None:
    """Return the first kind of task that trains this head, or None for a pretraining head."""
    return next((kind for kind in task_kinds() if kind.head.name == head), None)


def score_outputs(head: str) -> tuple[str, ...]:
    """Return Hugging Face's names for the outputs that contain a head's scores.

    Either one output contains all scores, or each score has its own output. For a pretraining head,
    the result is ().
    """
    kind = kind_of_head(head)
    if kind is None:
        return ()
    return ("logits",) if kind.huggingface is None else kind.huggingface.outputs


def loss_of(task: TaskConfig, model: ModelConfig, compute: ComputeConfig) -> ClassifierTask:
    """Return a task's loss for a model that has the task's head."""
    kind = kind_of_task(task)
    assert model.head == kind.head.name, (model.head, kind.section)
    return kind.loss(model, compute)


def predict_tasks() -> dict[str, PredictTask]:
    """Return the tasks that `predict` supports, keyed by name."""
    tasks = (*PRETRAINED, *(kind.predict for kind in task_kinds()), EMBED)
    return {task.name: task for task in tasks}
