"""The registry of task kinds: the only list of the tasks that models can be fine-tuned for."""

from __future__ import annotations

from bert_jax.finetuning.choices import CHOICES
from bert_jax.finetuning.glue import GLUE
from bert_jax.finetuning.sentences import SENTENCES
from bert_jax.finetuning.spans import SPANS
from bert_jax.finetuning.tags import TAGS
from bert_jax.finetuning.task_kind import TaskConfig, TaskKind
from bert_jax.inference.predict_tasks import EMBED, PRETRAINED, PredictTask
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import ModelConfig, register_head
from bert_jax.tasks.finetuning import ClassifierTask

_KINDS: dict[str, TaskKind] = {
    kind.section: kind for kind in (GLUE, SENTENCES, CHOICES, TAGS, SPANS)
}


def register(kind: TaskKind) -> None:
    """Add a kind of task, whose models can then be trained, evaluated, used and exported.

    Raises:
      ValueError: another kind has the same section or config, another head has the same name, or
        another task of `predict` has the same name.
    """
    if _KINDS.get(kind.section, kind) != kind:
        raise ValueError(
            f"section={kind.section!r}: another kind of task has this section. Choose another name"
        )
    for other in task_kinds():
        if other.config is kind.config and other != kind:
            raise ValueError(
                f"config={kind.config.__name__}: the kind of the section {other.section!r} has "
                "this config. Write a subclass of it"
            )
    if predict_tasks().get(kind.predict.name, kind.predict) != kind.predict:
        raise ValueError(
            f"predict={kind.predict.name!r}: another task of `predict` has this name. Choose "
            "another name"
        )
    register_head(kind.head)
    _KINDS[kind.section] = kind


def task_kinds() -> tuple[TaskKind, ...]:
    """Return all kinds of tasks."""
    return tuple(_KINDS.values())


def task_sections() -> dict[str, type[TaskConfig]]:
    """Return the dataclass of each task section of a fine-tuning config, by the section's key."""
    return {kind.section: kind.config for kind in task_kinds()}


def kind_of_task(task: TaskConfig) -> TaskKind:
    """Return the kind of task that a section of a config describes.

    Raises:
      ValueError: no kind has this config.
    """
    for kind in task_kinds():
        if type(task) is kind.config:
            return kind
    raise ValueError(
        f"task={task!r:.100}: {type(task).__name__} is not the config of a kind of task. Add the "
        "kind with `register` of bert_jax.finetuning.registry"
    )


def kind_of_head(head: str) -> TaskKind | None:
    """Return the first kind of task that trains a head; None for a pretraining head."""
    return next((kind for kind in task_kinds() if kind.head.name == head), None)


def score_outputs(head: str) -> tuple[str, ...]:
    """Return Hugging Face's names of the outputs that contain a head's scores.

    One output contains all scores, or each score has an output of its own. For a pretraining head,
    the result is ().
    """
    kind = kind_of_head(head)
    if kind is None:
        return ()
    return ("logits",) if kind.huggingface is None else kind.huggingface.outputs


def loss_of(task: TaskConfig, model: ModelConfig, compute: ComputeConfig) -> ClassifierTask:
    """Return the loss of a task for a model with its head."""
    kind = kind_of_task(task)
    assert model.head == kind.head.name, (model.head, kind.section)
    return kind.loss(model, compute)


def predict_tasks() -> dict[str, PredictTask]:
    """Return the tasks of `predict` by their names."""
    tasks = (*PRETRAINED, *(kind.predict for kind in task_kinds()), EMBED)
    return {task.name: task for task in tasks}
