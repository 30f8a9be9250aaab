"""Compute the gradient of a batch, which may be split into micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.models.parameters import Parameters
from bert_jax.tasks.task import (
    Batch,
    Metrics,
    Task,
    Teacher,
    add_metrics,
    check_metrics,
    total_loss,
)
from bert_jax.training.sharding import batch_sharding
from bert_jax.training.state import IsTrainable, all_trainable, trainable_part


@dataclass(frozen=True)
class BatchGradient:
    """The gradient of a task's loss, as a function to be traced.

    Attributes:
      task: the model and the loss.
      mesh: the device mesh.
      accumulation_steps: see `make_train_step`.
      is_trainable: see `make_train_step`.
      teacher: see `make_train_step`.
    """

    task: Task
    mesh: Mesh
    accumulation_steps: int = 1
    is_trainable: IsTrainable = all_trainable
    teacher: Teacher | None = None

    def __call__(
        self, params: Parameters, batch: Batch, key: jax.Array, of_teacher: Parameters
    ) -> tuple[Parameters, Metrics, dict[str, jax.Array]]:
        """Return the gradient, the batch's metrics and its loss weights.

        Args:
          params: the parameters.
          batch: the batch.
          key: the key for the batch's dropout.
          of_teacher: the teacher's parameters; {} if there is no teacher.
        """
        weights = self.task.loss_weights(batch)
        learning = trainable_part(params, self.is_trainable)
        frozen = {name: x for name, x in params.items() if name not in learning}

        def gradient(batch: Batch, key: jax.Array) -> tuple[Parameters, Metrics]:
            batch = self.annotated(batch, of_teacher)
            differentiated = jax.grad(self._loss_and_metrics, has_aux=True)
            return differentiated(learning, frozen, batch, weights, key)

        if self.accumulation_steps == 1:
            grads, metrics = gradient(batch, key)
        else:
            grads, metrics = _accumulate(gradient, *self.parts(batch, key))
        return grads, metrics, weights

    def annotated(self, batch: Batch, of_teacher: Parameters) -> Batch:
        """Return a batch or micro-batch with the outputs of the teacher, if there is one."""
        if self.teacher is None:
            return batch
        return self.teacher.annotate(self.teacher.definition.module(of_teacher), batch)

    def parts(self, batch: Batch, key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """Return the micro-batches, stacked in a new first dim, and their dropout keys."""
        count = self.accumulation_steps
        return _split(batch, count, self.mesh), jax.random.split(key, count)

    def _loss_and_metrics(
        self,
        learning: Parameters,
        frozen: Parameters,
        batch: Batch,
        weights: dict[str, jax.Array],
        key: jax.Array,
    ) -> tuple[jax.Array, Metrics]:
        model = self.task.definition.module({**frozen, **learning})
        metrics = self.task.metrics(model, batch, key)
        check_metrics(self.task, metrics, weights)
        return total_loss(self.task, metrics, weights), metrics


def _split(batch: Batch, parts: int, mesh: Mesh) -> dict[str, jax.Array]:
    """Reshape [batch, ...] to [parts, batch / parts, ...] without moving rows between devices.

    Part p gets rows p, p + parts, ..., since consecutive rows are on only a few devices.
    """

    def split(x: jax.Array) -> jax.Array:
        x = jnp.moveaxis(x.reshape(x.shape[0] // parts, parts, *x.shape[1:]), 1, 0)
        spec = PartitionSpec(None, *batch_sharding(mesh).spec)
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))

    return {name: split(x) for name, x in batch.items()}


def _accumulate(
    gradient: Callable[[Batch, jax.Array], tuple[Any, Metrics]], parts: Batch, keys: jax.Array
) -> tuple[Any, Metrics]:
    """Add up the gradients and metrics of all parts; the losses have a common denominator."""

    def body(carry: tuple[Any, Metrics], part: tuple[Batch, jax.Array]) -> tuple[Any, None]:
        grads, metrics = gradient(*part)
        return (jax.tree.map(jnp.add, carry[0], grads), add_metrics(carry[1], metrics)), None

    first = jax.tree.map(lambda x: x[0], parts)
    shapes = jax.eval_shape(gradient, first, keys[0])
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
    return jax.lax.scan(body, zeros, (parts, keys))[0]
