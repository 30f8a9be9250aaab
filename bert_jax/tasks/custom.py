"""Provide the base class for tasks with a custom model and loss."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.parameters import ModelDefinition, define
from bert_jax.tasks.task import ADDED_METRICS, Batch, Metrics


class CustomTask(abc.ABC):
    """A custom model and loss that `Trainer` can train on any mesh.

    A subclass builds a module and computes metrics, each of which is a sum and a weight::

        class Regression(CustomTask):
            loss_terms = {"squared_error": 1.0}

            def build(self, rngs):
                return nnx.Linear(4, 1, rngs=rngs)

            def metrics(self, model, batch, dropout_key):
                error = jnp.square(model(batch["x"])[:, 0] - batch["y"])
                return {"squared_error": weighted_mean(error, jnp.ones_like(error))}

    Attributes:
      loss_terms: maps each metric that contributes to the loss to its coefficient. No metric may be
        called "loss" or "gradient_norm", since the train step adds metrics with these names.
    """

    loss_terms: Mapping[str, float]

    @abc.abstractmethod
    def build(self, rngs: nnx.Rngs) -> Any:
        """Return the module with randomly initialized parameters.

        Parameters without `logical_axes` metadata are replicated. Modules from this package are
        sharded as usual.
        """

    @abc.abstractmethod
    def metrics(self, model: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        """Return all metrics for a batch, including the metrics in `loss_terms`.

        Args:
          model: the module that `build` returns, with the current parameters.
          batch: arrays whose first dim is the batch dim.
          dropout_key: a new key for every step; None during evaluation.
        """

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """Return each loss term's weight in the whole batch, which defaults to the number of rows.

        Override this method if a metric has a different weight, such as the number of tokens. The
        weights may depend only on the batch. If a batch is processed in parts, each part's sum is
        divided by the weight of the whole batch.
        """
        rows = jnp.float32(next(iter(batch.values())).shape[0])
        return dict.fromkeys(self.loss_terms, rows)

    @cached_property
    def definition(self) -> ModelDefinition[Any]:
        """The model's definition, with its parameters' names, shapes and logical axes."""
        if not getattr(self, "loss_terms", None):
            raise ValueError(
                f"loss_terms: {type(self).__name__} has none. Set a coefficient for each metric "
                "that contributes to the loss."
            )
        reserved = ADDED_METRICS & self.loss_terms.keys()
        if reserved:
            raise ValueError(
                f"loss_terms: {min(reserved)!r} is reserved for a metric that the train step adds. "
                "Rename your metric."
            )
        return define(self.build, replicate_others=True)
