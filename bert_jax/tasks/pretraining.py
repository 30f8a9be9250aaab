"""Define pretraining: masked language modeling with or without a sentence-pair task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import ModelDefinition, define
from bert_jax.models.pretraining_models import PretrainingModel, PretrainingOutput, StudentModel
from bert_jax.objectives import PAIR_PREFIX, SentencePairs
from bert_jax.tasks.task import Batch, Metric, Metrics, cross_entropy, weighted_mean
from bert_jax.validation import check_choice


def metric_names(sentence_pairs: SentencePairs) -> tuple[str, ...]:
    """Return the names of the metrics that `Pretraining` computes, except `tokens`."""
    names = ("mlm_loss", "mlm_accuracy")
    if sentence_pairs == "none":
        return names
    prefix = PAIR_PREFIX[sentence_pairs]
    return (*names, f"{prefix}_loss", f"{prefix}_accuracy")


def run(
    model: PretrainingModel,
    batch: Batch,
    positions: jax.Array,
    dropout_key: jax.Array | None,
    *,
    return_hidden_states: bool = False,
    return_attention_scores: bool = False,
) -> PretrainingOutput:
    """Run the model on a batch, and apply its masked-LM head at `positions` [batch, count]."""
    packed = batch["cls_positions"].shape[1] > 1
    return model(
        batch["token_ids"],
        batch["segment_ids"],
        batch["position_ids"] if packed else None,
        batch["document_ids"],
        positions,
        batch["cls_positions"],
        packed=packed,
        dropout_key=dropout_key,
        return_hidden_states=return_hidden_states,
        return_attention_scores=return_attention_scores,
    )


class Pretraining:
    """Pretraining on the sum of the mean masked-LM loss and the mean sentence-pair loss.

    The sentence-pair loss is a mean over all fragments, where a fragment is the part of a document
    that lies in one row. Fragments without a pair contribute 0, so a pair has the same weight in
    every batch. With a mean over pairs only, the pair loss would keep its full weight even if only
    one in fifty fragments had a pair. In a run with such a mean, three pairs weighed as much as
    1,200 masked tokens, and a small ALBERT did not learn to use context for hundreds of steps.

    Source: Devlin et al. 2019, appendix A.2.

    `bert_jax.pipeline.examples` builds the batches, which contain `token_ids`, `segment_ids`,
    `position_ids` and `document_ids` [batch, length]; `masked_positions`, `masked_labels` and
    `masked_weights` [batch, predictions]; and `cls_positions`, `pair_labels` and `pair_weights`
    [batch, fragments].

    Args:
      config: the encoder's architecture.
      compute: options for the computation.
      sentence_pairs: "next_sentence" or "sentence_order" for a sentence-pair head with its loss;
        "none" for masked language modeling only.
      teacher_dim: the dimension to which a `StudentModel` projects its states; None for a model
        without projections.
    """

    definition: ModelDefinition[PretrainingModel]
    loss_terms: Mapping[str, float]

    def __init__(
        self,
        config: EncoderConfig,
        compute: ComputeConfig,
        *,
        sentence_pairs: SentencePairs = "next_sentence",
        teacher_dim: int | None = None,
    ):
        check_choice("sentence_pairs", sentence_pairs, get_args(SentencePairs))
        pairs = sentence_pairs != "none"

        def build(rngs: nnx.Rngs) -> PretrainingModel:
            if teacher_dim is None:
                return PretrainingModel(config, compute, rngs, next_sentence=pairs)
            return StudentModel(config, compute, rngs, next_sentence=pairs, teacher_dim=teacher_dim)

        self.compute = compute
        self.sentence_pairs = sentence_pairs
        self.definition = define(build)
        self._metric_names = metric_names(sentence_pairs)
        self.loss_terms = {name: 1.0 for name in self._metric_names if name.endswith("_loss")}

    def on(self, config: EncoderConfig) -> Pretraining:
        """Return the same task for another encoder, without projections to a teacher."""
        return Pretraining(config, self.compute, sentence_pairs=self.sentence_pairs)

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """See `Task.loss_weights`."""
        weights = {"mlm_loss": jnp.sum(batch["masked_weights"])}
        if self.sentence_pairs != "none":
            first = (batch["position_ids"] == 0) & (batch["document_ids"] != 0)
            weights[self._metric_names[2]] = jnp.sum(first.astype(jnp.float32))
        return weights

    def metrics(
        self, model: PretrainingModel, batch: Batch, dropout_key: jax.Array | None
    ) -> Metrics:
        """Return the losses (in nats) and accuracies that `metric_names` lists, and `tokens`."""
        output = run(model, batch, batch["masked_positions"], dropout_key)
        return self.metrics_of(output, batch)

    def metrics_of(self, output: PretrainingOutput, batch: Batch) -> Metrics:
        """Return the metrics for precomputed outputs at the masked positions."""
        weights, ops = batch["masked_weights"], self.compute.ops
        mlm = cross_entropy(output.token_logits, batch["masked_labels"], ops)
        real_tokens = jnp.sum(batch["document_ids"] != 0).astype(jnp.float32)
        metrics = {
            "mlm_loss": weighted_mean(mlm.loss, weights),
            "mlm_accuracy": weighted_mean(mlm.correct, weights),
            "tokens": Metric(real_tokens, jnp.ones(())),
        }
        if output.next_sentence_logits is not None:
            weights = batch["pair_weights"]
            scored = cross_entropy(output.next_sentence_logits, batch["pair_labels"], ops)
            loss, accuracy = self._metric_names[2:]
            metrics[loss] = weighted_mean(scored.loss, weights)
            metrics[accuracy] = weighted_mean(scored.correct, weights)
        assert metrics.keys() == {*self._metric_names, "tokens"}
        return metrics
