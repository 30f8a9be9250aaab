"""The one of several choices that goes best with a text."""

from __future__ import annotations

from typing import ClassVar

import jax

from bert_jax.models.model import Head
from bert_jax.tasks.classifier_task import Arrays, ClassifierTask
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.protocol import Batch


class MultipleChoice(ClassifierTask):
    """Softmax cross-entropy over the scores of the choices (Devlin et al. 2019, section 4.4).

    Tokens are [batch, choices, length]; the target is `labels` [batch], the number of the choice.
    """

    head: ClassVar[Head] = "multiple_choice"
    loss_terms = {"cross_entropy": 1.0}

    def weights(self, batch: Batch) -> Arrays:
        """See `ClassifierTask.weights`."""
        return {name: batch["example_weights"] for name in ("cross_entropy", "accuracy")}

    def values(self, logits: jax.Array, batch: Batch) -> Arrays:
        """See `ClassifierTask.values`."""
        found = cross_entropy(logits, batch["labels"])
        return {"cross_entropy": found.loss, "accuracy": found.correct}
