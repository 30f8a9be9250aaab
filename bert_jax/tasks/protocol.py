"""What a task is to the trainer: a model, a loss made of weighted means, and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

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


class Task(Protocol):
    """What the one train step needs to know of what is learned.

    definition: the model and its parameters.
    loss_terms: metric name to coefficient; the loss is the sum of coefficient x the metric's sum /
        its weight in `loss_weights`.
    """

    definition: ModelDefinition[Any]
    loss_terms: Mapping[str, float]

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

    def shows(self, model: Any, batch: Batch) -> Batch:
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


def total_loss(task: Task, metrics: Metrics, weights: Mapping[str, jax.Array]) -> jax.Array:
    """The loss that `metrics` contribute when the whole batch weighs `weights`."""
    loss = jnp.zeros((), jnp.float32)
    for name, coefficient in task.loss_terms.items():
        loss += coefficient * Metric(metrics[name].sum, weights[name]).mean()
    return loss
