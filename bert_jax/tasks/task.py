"""The protocol of a task: a model, a loss made of weighted means, and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from bert_jax.models.config import Ops
from bert_jax.models.ops import with_ops
from bert_jax.models.parameters import ModelDefinition

Batch = Mapping[str, jax.Array]


class Metric(NamedTuple):
    """A mean that can be added up: over micro-batches, batches and hosts alike."""

    sum: jax.Array
    weight: jax.Array

    def mean(self) -> jax.Array:
        """sum / weight, and 0 where nothing was counted."""
        return self.sum / jnp.where(self.weight > 0, self.weight, 1)


Metrics = dict[str, Metric]
# Metrics of a train step, which are added to those of the task.
ADDED_METRICS = frozenset({"loss", "gradient_norm"})


class Task(Protocol):
    """A model and a loss, as the one train step needs them."""

    @property
    def definition(self) -> ModelDefinition[Any]:
        """The model and its parameters."""
        ...

    @property
    def loss_terms(self) -> Mapping[str, float]:
        """Metric name to coefficient.

        The loss is the sum of coefficient x the metric's sum / its weight in `loss_weights`.
        """
        ...

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """What the sum of every loss term is divided by, from the batch alone.

        As a rule the metric's own weight; see `Pretraining` for where it is more.

        Known before the forward pass, so that a batch processed in parts has the gradient of the
        whole: every part divides by the weight of all.
        """
        ...

    def metrics(self, model: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        """All metrics of a batch, the loss terms among them, and `tokens` (real tokens seen)."""
        ...


class Teacher(Protocol):
    """A model that a task learns from; it never changes and is no part of the task's own.

    definition: the model and its parameters.
    """

    definition: ModelDefinition[Any]

    def annotate(self, model: Any, batch: Batch) -> Batch:
        """The batch with what the teacher says of it; arrays whose first dim is the batch's."""
        ...


class ScoringTask(Task, Protocol):
    """A task whose metrics are of logits, one row of them for each example."""

    def logits(self, model: Any, batch: Batch) -> jax.Array:
        """Float32 logits without dropout; `batch` needs no targets."""
        ...

    def metrics_of(self, logits: jax.Array, batch: Batch) -> Metrics:
        """`Task.metrics` of logits that are there already."""
        ...


def weighted_mean(values: jax.Array, weights: jax.Array) -> Metric:
    """The metric of float32 `values` under `weights` of the same shape."""
    return Metric(jnp.sum(values * weights), jnp.sum(weights))


def add_metrics(left: Metrics, right: Metrics) -> Metrics:
    """The metrics of two batches taken together."""
    assert left.keys() == right.keys()
    return {
        name: Metric(left[name].sum + right[name].sum, left[name].weight + right[name].weight)
        for name in left
    }


def check_metrics(task: Task, metrics: Metrics, weights: Mapping[str, jax.Array]) -> None:
    """Raise ValueError if a task's metrics or weights do not fit its loss terms."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            raise ValueError(
                f"metrics: {name} is a {type(metric).__name__}; expected a sum and a weight, as "
                "`weighted_mean` returns them."
            )
    for name in task.loss_terms:
        for function, found in (("metrics", metrics), ("loss_weights", weights)):
            if name not in found:
                raise ValueError(
                    f"loss_terms: {name!r} is not in the result of `{function}`, which has "
                    f"{', '.join(found) or 'nothing'}. Give both the same name."
                )
    reserved = sorted(ADDED_METRICS & metrics.keys())
    if reserved:
        raise ValueError(
            f"metrics: {reserved[0]!r} is the name of a metric that is added. Rename it."
        )


def total_loss(task: Task, metrics: Metrics, weights: Mapping[str, jax.Array]) -> jax.Array:
    """The loss that `metrics` contribute when the whole batch weighs `weights`."""
    loss = jnp.zeros((), jnp.float32)
    for name, coefficient in task.loss_terms.items():
        loss += coefficient * Metric(metrics[name].sum, weights[name]).mean()
    return loss


class CrossEntropy(NamedTuple):
    """Per position: loss in nats and whether the label had the highest logit (1.0 or 0.0)."""

    loss: jax.Array
    correct: jax.Array


def cross_entropy(logits: jax.Array, labels: jax.Array, ops: Ops = "fast") -> CrossEntropy:
    """Softmax cross-entropy with integer labels, in float32.

    Args:
      logits: [..., classes].
      labels: [...] integers in [0, classes).
      ops: see `ComputeConfig`.
    """
    rows = logits.astype(jnp.float32).reshape(-1, logits.shape[-1])
    classes = jnp.clip(labels, 0, logits.shape[-1] - 1)
    loss, correct = with_ops(_cross_entropy, ops)(rows, classes.reshape(-1))
    return CrossEntropy(loss.reshape(labels.shape), correct.reshape(labels.shape))


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    return _forward(logits, labels)[0]


def _forward(
    logits: jax.Array, labels: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[..., 0]
    highest = jnp.max(logits, axis=-1)
    total = jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)
    # Differences of logits first: highest + log(total) would round the loss to their magnitude.
    loss = jnp.log(total) + (highest - label_logit)
    correct = (label_logit >= highest).astype(jnp.float32)
    return (loss, correct), (logits, labels, highest, total)


def _backward(
    residuals: tuple[jax.Array, ...], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    # Softmax less one-hot in one pass over the logits: the gather of the forward pass,
    # differentiated as it stands, would scatter into an array as large as them.
    logits, labels, highest, total = residuals
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    scale = cotangents[0] / total
    at_label = jnp.where(classes == labels[..., None], cotangents[0][..., None], 0.0)
    return jnp.exp(logits - highest[..., None]) * scale[..., None] - at_label, None


_cross_entropy.defvjp(_forward, _backward)


def soft_cross_entropy(
    student: jax.Array, teacher: jax.Array, temperature: float, ops: Ops = "fast"
) -> jax.Array:
    """temperature^2 x KL(teacher || student) of logits [..., vocab_size] divided by it: [...].

    Float32. The gradient for the student is that of the cross-entropy; there is none for the
    teacher. ops: see `ComputeConfig`.
    """
    teacher = jax.lax.stop_gradient(teacher.astype(jnp.float32))
    return with_ops(_soft_cross_entropy, ops)(student.astype(jnp.float32), teacher, temperature)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _soft_cross_entropy(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    ours = jax.nn.log_softmax(student / temperature, axis=-1)
    theirs = jax.nn.log_softmax(teacher / temperature, axis=-1)
    return temperature**2 * jnp.sum(jnp.exp(theirs) * (theirs - ours), axis=-1)


def _soft_forward(
    student: jax.Array, teacher: jax.Array, temperature: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _soft_cross_entropy(student, teacher, temperature), (student, teacher)


def _soft_backward(
    temperature: float, logits: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None]:
    # One difference of two softmaxes: differentiated as it stands, half as much again is kept, in
    # arrays as large as the logits.
    ours, theirs = (jax.nn.softmax(each / temperature, axis=-1) for each in logits)
    return temperature * (ours - theirs) * cotangent[..., None], None


_soft_cross_entropy.defvjp(_soft_forward, _soft_backward)
