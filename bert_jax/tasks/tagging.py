"""A tag for every word."""

from __future__ import annotations

from typing import ClassVar

import jax

from bert_jax.models.model import Head
from bert_jax.tasks.classifier_task import Arrays, ClassifierTask
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.protocol import Batch


class Tagging(ClassifierTask):
    """Softmax cross-entropy of the labelled tokens (Devlin et al. 2019, section 5.3).

    The targets are `labels` and `label_weights` [batch, length], 1 where a label counts (the first
    word-piece of a word). The loss is the mean over all labelled tokens of the batch: a long
    sentence weighs more than a short one.
    """

    head: ClassVar[Head] = "tagging"
    loss_terms = {"cross_entropy": 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        weights = batch["label_weights"] * batch["example_weights"][:, None]
        return {name: weights for name in ("cross_entropy", "accuracy")}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        found = cross_entropy(logits, batch["labels"])
        return {"cross_entropy": found.loss, "accuracy": found.correct}
