"""A task small enough to compile in no time, for tests of what surrounds the model."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from bert_jax.models.parameters import define
from bert_jax.tasks.protocol import Batch, Metric, Metrics, Task, weighted_mean


class Line(nnx.Module):
    """An affine map whose names and axes are of the kinds a real model has."""

    def __init__(self, rngs: nnx.Rngs, dim: int):
        self.dense = nnx.Linear(
            dim,
            4,
            kernel_metadata={"logical_axes": ("embed", "ffn")},
            bias_metadata={"logical_axes": ("ffn",)},
            rngs=rngs,
        )


class Fitting:
    """Fits `Line` to `x` [batch, dim] -> `y` [batch, 4]; x gets noise where there is a key.

    Rows weigh `weight` [batch].
    """

    loss_terms = {"mlm_loss": 1.0}

    def __init__(self, dim: int):
        self.definition = define(lambda rngs: Line(rngs, dim))

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        return {"mlm_loss": jnp.sum(batch["weight"])}

    def metrics(self, model: Any, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        x = batch["x"]
        if dropout_key is not None:
            x = x + 0.1 * jax.random.normal(dropout_key, x.shape)
        errors = jnp.sum((model.dense(x) - batch["y"]) ** 2, axis=1)
        return {
            "mlm_loss": weighted_mean(errors, batch["weight"]),
            "tokens": Metric(jnp.sum(batch["weight"]), jnp.ones(())),
        }


@pytest.fixture(scope="session")
def make_task() -> Callable[[int], Task]:
    return Fitting
