"""Define the protocols of tasks and teachers, and compute metrics and cross-entropy losses."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from bert_jax.models.options import Ops, with_ops
from bert_jax.models.parameters import ModelDefinition

Batch = Mapping[str, jax.Array]


class Metric(NamedTuple):
    """A mean, stored as a sum and a weight that can be accumulated over batches and hosts.

    Attributes:
      sum: the weighted sum of the values.
      weight: the sum of the weights.
    """

    sum: jax.Array
    weight: jax.Array

    def mean(self) -> jax.Array:
        """Return sum / weight, or 0 if the weight is 0."""
        return self.sum / jnp.where(self.weight > 0, self.weight, 1)


Metrics = dict[str, Metric]
# Metrics that a train step reports in addition to the task's metrics.
ADDED_METRICS = frozenset(
    {"loss", "gradient_norm", "skipped", "outliers", "loss_limit", "gradient_norm_limit"}
)


class Task(Protocol):
    """A model and a loss in the form that the train step needs."""

    @property
    def definition(self) -> ModelDefinition[Any]:
        """The model's definition."""
        ...

    @property
    def loss_terms(self) -> Mapping[str, float]:
        """The coefficient of each metric that contributes to the loss.

        The loss is the sum of coefficient x (the metric's sum / its weight in `loss_weights`).
        """
        ...

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return the number by which each loss term's sum is divided.

        The divisor is normally the metric's weight; the sentence-pair loss of `Pretraining` is an
        exception.

        Divisors depend only on the batch, not on the forward pass. If a batch is processed in
        parts, each part can therefore be divided by the divisor of the whole batch. The gradients
        of the parts then add up to the gradient of the batch.
        """
        ...

    def metrics(self, model: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        """Return a batch's metrics, ignoring padding: the loss terms, `tokens` and any others."""
        ...


class Teacher(Protocol):
    """A fixed model, separate from the task's model, whose outputs are targets for the task.

    Attributes:
      definition: the definition of the teacher's model.
    """

    definition: ModelDefinition[Any]

    def annotate(self, model: Any, batch: Batch) -> Batch:
        """Return the batch plus the teacher's outputs, each an array with a leading batch dim."""
        ...


class ScoringTask(Task, Protocol):
    """A task that computes its metrics from logits, which have one row per example."""

    def logits(self, model: Any, batch: Batch) -> jax.Array:
        """Return float32 logits, computed without dropout; `batch` needs no targets."""
        ...

    def metrics_of(self, logits: jax.Array, batch: Batch) -> Metrics:
        """Return `Task.metrics` for precomputed logits."""
        ...


def weighted_mean(values: jax.Array, weights: jax.Array) -> Metric:
    """Return a weighted mean as a metric.

    Args:
      values: float32 [...].
      weights: the weights, in the same shape as `values`.
    """
    return Metric(jnp.sum(values * weights), jnp.sum(weights))


def add_metrics(left: Metrics, right: Metrics) -> Metrics:
    """Combine the metrics of two batches."""
    assert left.keys() == right.keys()
    return {
        name: Metric(left[name].sum + right[name].sum, left[name].weight + right[name].weight)
        for name in left
    }


def check_metrics(task: Task, metrics: Metrics, weights: Mapping[str, jax.Array]) -> None:
    """Raise a ValueError if a task's metrics or weights do not match its loss terms."""
    for name, metric in metrics.items():
        if not isinstance(metric, Metric):
            raise ValueError(
                f"metrics: {name} is a {type(metric).__name__}. Expected a sum and a weight, as "
                "returned by `weighted_mean`."
            )
    for name in task.loss_terms:
        for function, result in (("metrics", metrics), ("loss_weights", weights)):
            if name not in result:
                raise ValueError(
                    f"loss_terms: {name!r} is missing from the result of `{function}`, which has "
                    f"{', '.join(result) or 'nothing'}. Use the same name in both."
                )
    reserved = sorted(ADDED_METRICS & metrics.keys())
    if reserved:
        raise ValueError(
            f"metrics: {reserved[0]!r} is reserved for a metric that the train step adds. Rename "
            "your metric."
        )


def total_loss(task: Task, metrics: Metrics, weights: Mapping[str, jax.Array]) -> jax.Array:
    """Return the contribution of `metrics` to a batch's loss, given the batch's loss weights."""
    loss = jnp.zeros((), jnp.float32)
    for name, coefficient in task.loss_terms.items():
        loss += coefficient * Metric(metrics[name].sum, weights[name]).mean()
    return loss


class CrossEntropy(NamedTuple):
    """The loss and the correctness of the prediction at every position.

    Attributes:
      loss: float32 [...], the loss in nats.
      correct: float32 [...], 1.0 if the label has the highest logit, else 0.0.
    """

    loss: jax.Array
    correct: jax.Array


def cross_entropy(logits: jax.Array, labels: jax.Array, ops: Ops = "fast") -> CrossEntropy:
    """Compute the softmax cross-entropy with integer labels, in float32.

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
    return _score(logits, labels, *_in_two_passes(logits))


def _score(
    logits: jax.Array, labels: jax.Array, highest: jax.Array, total: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return each row's loss and correctness, given the results of `_in_two_passes`."""
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[..., 0]
    # Subtract the logits first: the rounding error of highest + log(total) grows with the logits.
    loss = jnp.log(total) + (highest - label_logit)
    return loss, (label_logit >= highest).astype(jnp.float32)


def _forward(
    logits: jax.Array, labels: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, ...]]:
    highest, total = jax.lax.platform_dependent(logits, cuda=_in_one_pass, default=_in_two_passes)
    return _score(logits, labels, highest, total), (logits, labels, highest, total)


def _in_two_passes(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return each row's highest logit, and the sum of exp(logit - highest)."""
    highest = jnp.max(logits, axis=-1)
    return highest, jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1)


def _in_one_pass(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute the result of `_in_two_passes`, but read the logits only once.

    Whenever the highest logit so far changes, the sum so far is rescaled (Milakov and Gimelshein
    2018, "Online normalizer calculation for softmax", section 3.1). This is used on GPUs, where a
    pass over the logits takes as long as reading them. On TPUs, the two passes also read the logits
    only once, since XLA finds the highest logits while it computes all of them.
    """

    def combine(
        left: tuple[jax.Array, jax.Array], right: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        difference = left[0] - right[0]
        smaller = jnp.exp(-jnp.abs(difference))
        scales = jnp.where(difference > 0, 1.0, smaller), jnp.where(difference > 0, smaller, 1.0)
        return jnp.maximum(left[0], right[0]), left[1] * scales[0] + right[1] * scales[1]

    # The difference between two logits of -inf would be NaN.
    lowest = jnp.finfo(jnp.float32).min
    finite = jnp.maximum(logits, lowest)
    start = (jnp.float32(lowest), jnp.float32(0.0))
    highest, total = jax.lax.reduce((finite, jnp.ones_like(finite)), start, combine, (1,))
    return highest, total


def _backward(
    residuals: tuple[jax.Array, ...], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    # Compute softmax minus one-hot in one pass over the logits. JAX's own derivative of the gather
    # in the forward pass would scatter into an array as large as the logits.
    logits, labels, highest, total = residuals
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    scale = cotangents[0] / total
    at_label = jnp.where(classes == labels[..., None], cotangents[0][..., None], 0.0)
    return jnp.exp(logits - highest[..., None]) * scale[..., None] - at_label, None


_cross_entropy.defvjp(_forward, _backward)


def soft_cross_entropy(
    student: jax.Array, teacher: jax.Array, temperature: float, ops: Ops = "fast"
) -> jax.Array:
    """Compute temperature^2 x KL(teacher || student), in float32.

    The student's gradient is the same as for the cross-entropy; the teacher receives no gradient.

    Args:
      student: logits [..., vocab_size].
      teacher: logits, in the same shape as `student`.
      temperature: the number by which all logits are divided.
      ops: see `ComputeConfig`.

    Returns:
      float32 [...].
    """
    teacher = jax.lax.stop_gradient(teacher.astype(jnp.float32))
    return with_ops(_soft_cross_entropy, ops)(student.astype(jnp.float32), teacher, temperature)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _soft_cross_entropy(student: jax.Array, teacher: jax.Array, temperature: float) -> jax.Array:
    student_log = jax.nn.log_softmax(student / temperature, axis=-1)
    teacher_log = jax.nn.log_softmax(teacher / temperature, axis=-1)
    return temperature**2 * jnp.sum(jnp.exp(teacher_log) * (teacher_log - student_log), axis=-1)


def _soft_forward(
    student: jax.Array, teacher: jax.Array, temperature: float
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _soft_cross_entropy(student, teacher, temperature), (student, teacher)


def _soft_backward(
    temperature: float, logits: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None]:
    # Compute the difference of two softmaxes. JAX's own derivative would keep additional arrays
    # as large as the logits, and would need 50% more memory.
    student, teacher = (jax.nn.softmax(values / temperature, axis=-1) for values in logits)
    return temperature * (student - teacher) * cotangent[..., None], None


_soft_cross_entropy.defvjp(_soft_forward, _soft_backward)
