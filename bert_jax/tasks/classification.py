"""Classification of a sentence or a pair of them, and regression of numbers they are rated by."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import optax

from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import Head, ModelConfig, Problem
from bert_jax.tasks.classifier_task import Arrays, ClassifierTask
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.protocol import Batch

_TERM: dict[Problem, str] = {
    "single_label": "cross_entropy",
    "multi_label": "binary_cross_entropy",
    "regression": "squared_error",
}


class Classification(ClassifierTask):
    """Scores of the pooled `[CLS]` vector (Devlin et al. 2019, section 4.1).

    The targets `labels` and the loss, by the model's problem:
      single_label: int32 [batch]; softmax cross-entropy.
      multi_label: float32 [batch, labels], 1 where a label holds, else 0; sigmoid cross-entropy,
        mean over labels. With one label: a binary task decided by a single logit.
      regression: float32 [batch] ([batch, labels] with several); squared error, mean over labels.
    `accuracy` counts examples (single_label) or every label of every example (multi_label).
    """

    head: ClassVar[Head] = "classification"

    def __init__(self, config: ModelConfig, compute: ComputeConfig):
        super().__init__(config, compute)
        self.problem = config.problem
        self.loss_terms = {_TERM[config.problem]: 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        names = [*self.loss_terms, *([] if self.problem == "regression" else ["accuracy"])]
        return {name: batch["example_weights"] for name in names}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        labels = batch["labels"]
        if self.problem == "single_label":
            found = cross_entropy(logits, labels)
            return {"cross_entropy": found.loss, "accuracy": found.correct}
        labels = labels.reshape(logits.shape)
        if self.problem == "regression":
            return {"squared_error": jnp.mean(optax.squared_error(logits, labels), axis=-1)}
        loss = optax.sigmoid_binary_cross_entropy(logits, labels)
        correct = ((logits > 0) == (labels > 0.5)).astype(jnp.float32)
        return {
            "binary_cross_entropy": jnp.mean(loss, axis=-1),
            "accuracy": jnp.mean(correct, axis=-1),
        }
