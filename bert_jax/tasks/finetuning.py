"""Define fine-tuning losses and metrics for classification, multiple choice, spans and tagging."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import assert_never, cast

import jax
import jax.numpy as jnp
import optax

from bert_jax.models.classifiers import Classifier
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.model import ModelConfig, Problem, define_model
from bert_jax.models.parameters import ModelDefinition
from bert_jax.tasks.task import Batch, Metric, Metrics, cross_entropy, weighted_mean

Arrays = dict[str, jax.Array]
# The arrays in a batch that the model takes as inputs.
INPUTS = ("token_ids", "segment_ids", "attention_mask")


class ClassifierTask(abc.ABC):
    """The base class for tasks whose loss and metrics are functions of a classifier's logits.

    The batches are made by `bert_jax.labeled_data.features.Features.batch`. They contain int32
    `token_ids`, `segment_ids` and `attention_mask` (1 for tokens, 0 for padding), each [batch,
    length], and the targets that the subclass documents. They also contain float32
    `example_weights` [batch]; a weight of 0 marks a padding row, which is ignored.
    """

    definition: ModelDefinition[Classifier]
    loss_terms: Mapping[str, float]

    def __init__(self, config: ModelConfig, compute: ComputeConfig):
        self.config, self.compute = config, compute
        self.definition = cast(ModelDefinition[Classifier], define_model(config, compute))

    @abc.abstractmethod
    def weights(self, batch: Batch) -> Arrays:
        """Return a dict from metric name to the weights of the metric's values."""

    @abc.abstractmethod
    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """Return a dict from metric name to the values to average, shaped like `weights`."""

    def loss_weights(self, batch: Batch) -> Arrays:
        """See `Task.loss_weights`."""
        weights = self.weights(batch)
        return {name: jnp.sum(weights[name]) for name in self.loss_terms}

    def metrics(self, model: Classifier, batch: Batch, dropout_key: jax.Array | None) -> Metrics:
        """Return the means of `values` and the number of tokens.

        Losses are in nats, except for squared errors.
        """
        return self.metrics_of(_logits(model, batch, dropout_key), batch)

    def metrics_of(self, logits: jax.Array, batch: Batch) -> Metrics:
        """Return the metrics for precomputed logits."""
        values = self.values(logits, batch)
        weights = self.weights(batch)
        assert values.keys() == weights.keys() >= self.loss_terms.keys()
        metrics = {name: weighted_mean(values[name], weights[name]) for name in values}
        real_tokens = jnp.sum(batch["attention_mask"]).astype(jnp.float32)
        return metrics | {"tokens": Metric(real_tokens, jnp.ones(()))}

    def logits(self, model: Classifier, batch: Batch) -> jax.Array:
        """Return float32 logits for a batch, computed without dropout.

        The logits have the shape [batch, labels] for classification, [batch, choices] for multiple
        choice, [batch, length, labels] for tagging, and [batch, length, 2] for the starts and ends
        of spans.
        """
        return _logits(model, batch, None)


def _logits(model: Classifier, batch: Batch, dropout_key: jax.Array | None) -> jax.Array:
    inputs = [batch[name] for name in INPUTS]
    *leading, length = inputs[0].shape
    logits = model(*(x.reshape(-1, length) for x in inputs), dropout_key=dropout_key)
    # In multiple choice, the model sees each choice as a separate row, which gets one score.
    return logits if len(leading) == 1 else logits.reshape(leading)


# Classification metrics for each problem; the first metric is the loss.
_METRICS: dict[Problem, tuple[str, ...]] = {
    "single_label": ("cross_entropy", "accuracy"),
    "multi_label": ("binary_cross_entropy", "accuracy"),
    "regression": ("squared_error",),
}


class Classification(ClassifierTask):
    """Classification from the pooled `[CLS]` vector (Devlin et al. 2019, section 4.1).

    The targets `labels` and the loss depend on the model's problem:
      single_label: int32 [batch]; softmax cross-entropy.
      multi_label: float32 [batch, labels], 1 for labels that apply, else 0; sigmoid cross-entropy,
        averaged over the labels. With one label, this is a binary task with a single logit.
      regression: float32 [batch], or [batch, labels] for multiple labels; squared error, averaged
        over the labels.
    `accuracy` is the fraction of correct examples (single_label) or of correct labels over all
    examples (multi_label).
    """

    def __init__(self, config: ModelConfig, compute: ComputeConfig):
        super().__init__(config, compute)
        self.problem = config.problem
        self.loss_terms = {_METRICS[config.problem][0]: 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        return {name: batch["example_weights"] for name in _METRICS[self.problem]}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        labels = batch["labels"]
        match self.problem:
            case "single_label":
                scored = cross_entropy(logits, labels, self.compute.ops)
                return {"cross_entropy": scored.loss, "accuracy": scored.correct}
            case "multi_label":
                labels = labels.reshape(logits.shape)
                loss = optax.sigmoid_binary_cross_entropy(logits, labels)
                correct = ((logits > 0) == (labels > 0.5)).astype(jnp.float32)
                return {
                    "binary_cross_entropy": jnp.mean(loss, axis=-1),
                    "accuracy": jnp.mean(correct, axis=-1),
                }
            case "regression":
                errors = optax.squared_error(logits, labels.reshape(logits.shape))
                return {"squared_error": jnp.mean(errors, axis=-1)}
            case _:
                assert_never(self.problem)


class MultipleChoice(ClassifierTask):
    """Multiple choice with a softmax over the choices' scores (Devlin et al. 2019, section 4.4).

    `token_ids` has the shape [batch, choices, length]. The target is `labels` [batch], the index of
    the correct choice.
    """

    loss_terms = {"cross_entropy": 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        return {name: batch["example_weights"] for name in ("cross_entropy", "accuracy")}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        scored = cross_entropy(logits, batch["labels"], self.compute.ops)
        return {"cross_entropy": scored.loss, "accuracy": scored.correct}


class Span(ClassifierTask):
    """Prediction of an answer's first and last token (Devlin et al. 2019, section 4.2).

    The targets are `start_positions` and `end_positions`, int32 [batch]. The loss is the
    average of two means: the cross-entropy for starts and the cross-entropy for ends. Each mean
    ignores examples whose position lies outside the row. The softmax is over all positions in a
    row, including padding, as in Google's and Hugging Face's BERT. `accuracy` counts examples for
    which both ends are correct.
    """

    # Use separate terms for starts and ends, since a truncated answer may have only one end in the
    # row.
    loss_terms = {"start_cross_entropy": 0.5, "end_cross_entropy": 0.5}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        weights, length = batch["example_weights"], batch["token_ids"].shape[1]
        starts, ends = (
            weights * ((position >= 0) & (position < length))
            for position in (batch["start_positions"], batch["end_positions"])
        )
        return {
            "start_cross_entropy": starts,
            "end_cross_entropy": ends,
            "accuracy": jnp.minimum(starts, ends),
        }

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        ops = self.compute.ops
        start = cross_entropy(logits[..., 0], batch["start_positions"], ops)
        end = cross_entropy(logits[..., 1], batch["end_positions"], ops)
        return {
            "start_cross_entropy": start.loss,
            "end_cross_entropy": end.loss,
            "accuracy": start.correct * end.correct,
        }


class Tagging(ClassifierTask):
    """Token tagging with softmax cross-entropy (Devlin et al. 2019, section 5.3).

    The targets are `labels` and `label_weights` [batch, length]. The weight is 1 for labeled tokens
    (the first token of each word) and 0 for all other tokens. The loss is the mean over all labeled
    tokens in a batch, so long sentences count more than short ones.
    """

    loss_terms = {"cross_entropy": 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        weights = batch["label_weights"] * batch["example_weights"][:, None]
        return {name: weights for name in ("cross_entropy", "accuracy")}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        scored = cross_entropy(logits, batch["labels"], self.compute.ops)
        return {"cross_entropy": scored.loss, "accuracy": scored.correct}
