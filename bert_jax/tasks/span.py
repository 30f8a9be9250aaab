"""Where in a text the answer to a question stands."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp

from bert_jax.models.model import Head
from bert_jax.tasks.classifier_task import Arrays, ClassifierTask
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.protocol import Batch


class Span(ClassifierTask):
    """Cross-entropy of an answer's first and last token (Devlin et al. 2019, section 4.2).

    The targets are `start_positions` and `end_positions` int32 [batch]. The loss is the mean of
    that of starts and that of ends, each over the examples whose position lies in the row: others
    count nowhere. The softmax is over all positions of a row, padding among them, as in Google's
    and Hugging Face's BERT. `accuracy` counts examples with both ends right.
    """

    head: ClassVar[Head] = "span"
    # Two terms: an answer cut off in its middle has one end in the row.
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
        start = cross_entropy(logits[..., 0], batch["start_positions"])
        end = cross_entropy(logits[..., 1], batch["end_positions"])
        return {
            "start_cross_entropy": start.loss,
            "end_cross_entropy": end.loss,
            "accuracy": start.correct * end.correct,
        }
