"""What the tasks share whose model is an encoder with a classifier on top."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, cast

import jax
import jax.numpy as jnp

from bert_jax.models.classifiers import Classifier
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import Head, ModelConfig, define_model
from bert_jax.models.parameters import ModelDefinition
from bert_jax.tasks.protocol import Batch, Metric, Metrics, weighted_mean

Arrays = dict[str, jax.Array]
# What of a batch the model reads.
INPUTS = ("token_ids", "segment_ids", "attention_mask")


class ClassifierTask(abc.ABC):
    """A loss over the logits of a classifier; a subclass says which.

    A batch is what bert_jax.data.finetuning.features.Features.batch gives: int32 `token_ids`,
    `segment_ids`, `attention_mask` (1: token, 0: padding) [batch, length]; float32
    `example_weights` [batch], 0 for rows of padding, which count nowhere; and the targets that the
    subclass names.
    """

    head: ClassVar[Head]
    definition: ModelDefinition[Classifier]
    loss_terms: Mapping[str, float]

    def __init__(self, config: ModelConfig, compute: ComputeConfig):
        assert config.head == self.head, (config.head, self.head)
        self.config, self.compute = config, compute
        self.definition = cast(ModelDefinition[Classifier], define_model(config, compute))

    @abc.abstractmethod
    def weights(self, batch: Batch) -> Arrays:
        """What the values of each metric weigh, by name."""

    @abc.abstractmethod
    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """The values that each metric is the mean of, by name, in the shapes of `weights`."""

    def loss_weights(self, batch: Batch) -> Arrays:
        """See `Task.loss_weights`."""
        weights = self.weights(batch)
        return {name: jnp.sum(weights[name]) for name in self.loss_terms}

    def metrics(self, model: Classifier, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        """The metrics of `values` (losses in nats, but squared errors) and tokens."""
        return self.metrics_of(_logits(model, batch, dropout_key), batch)

    def metrics_of(self, logits: jax.Array, batch: Batch) -> Metrics:
        """`metrics` of logits that are there already."""
        values = self.values(logits, batch)
        weights = self.weights(batch)
        assert values.keys() == weights.keys() >= self.loss_terms.keys()
        metrics = {name: weighted_mean(values[name], weights[name]) for name in values}
        real_tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        return metrics | {"tokens": Metric(real_tokens, jnp.ones(()))}

    def logits(self, model: Classifier, batch: Batch) -> jax.Array:
        """The float32 logits of a batch, without dropout.

        [batch, labels] for classification, [batch, choices] for multiple choice,
        [batch, length, labels] for tagging, [batch, length, 2] for a span's start and end.
        """
        return _logits(model, batch, None)


def _logits(model: Classifier, batch: Batch, dropout_key: jax.Array | None) -> jax.Array:
    inputs = [batch[name] for name in INPUTS]
    *leading, length = inputs[0].shape
    logits = model(*(x.reshape(-1, length) for x in inputs), dropout_key=dropout_key)
    # With choices, every one of them is a row of its own to the model, and has one score.
    return logits if len(leading) == 1 else logits.reshape(leading)
