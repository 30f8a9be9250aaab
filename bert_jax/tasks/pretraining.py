"""Pretraining: masked language modelling, with or without next-sentence prediction."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.heads import PretrainingModel
from bert_jax.models.parameters import ModelDefinition, define
from bert_jax.tasks.losses import cross_entropy
from bert_jax.tasks.protocol import Batch, Metric, Metrics, weighted_mean


def metric_names(next_sentence: bool) -> tuple[str, ...]:
    """What `Pretraining.metrics` tells besides `tokens`."""
    names = ("mlm_loss", "mlm_accuracy")
    return (*names, "nsp_loss", "nsp_accuracy") if next_sentence else names


class Pretraining:
    """The loss of Devlin et al. 2019, appendix A.2: mean MLM loss + mean NSP loss.

    A batch is what bert_jax.data.pipeline gives: `token_ids`, `segment_ids`, `position_ids`,
    `document_ids` [batch, length]; `masked_positions`, `masked_labels`, `masked_weights`
    [batch, predictions]; `cls_positions`, `next_sentence_labels`, `next_sentence_weights`
    [batch, pieces].
    """

    definition: ModelDefinition[PretrainingModel]
    loss_terms: Mapping[str, float]

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, *, next_sentence: bool = True
    ):
        def build(rngs: nnx.Rngs) -> PretrainingModel:
            return PretrainingModel(config, compute, rngs, next_sentence=next_sentence)

        self.next_sentence = next_sentence
        self.definition = define(build)
        self.loss_terms = {"mlm_loss": 1.0} | ({"nsp_loss": 1.0} if next_sentence else {})

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """See `Task.loss_weights`."""
        weights = {"mlm_loss": jnp.sum(batch["masked_weights"])}
        if self.next_sentence:
            weights["nsp_loss"] = jnp.sum(batch["next_sentence_weights"])
        return weights

    def metrics(
        self, model: PretrainingModel, batch: Batch, dropout_key: jax.Array | None
    ) -> Metrics:
        """mlm_loss, mlm_accuracy, nsp_loss, nsp_accuracy (losses in nats), tokens."""
        packed = batch["cls_positions"].shape[1] > 1
        output = model(
            batch["token_ids"],
            batch["segment_ids"],
            batch["position_ids"] if packed else None,
            batch["document_ids"],
            batch["masked_positions"],
            batch["cls_positions"],
            packed=packed,
            dropout_key=dropout_key,
        )
        weights = batch["masked_weights"]
        mlm = cross_entropy(output.token_logits, batch["masked_labels"])
        real_tokens = jnp.sum(batch["document_ids"] != 0).astype(jnp.float32)
        metrics = {
            "mlm_loss": weighted_mean(mlm.loss, weights),
            "mlm_accuracy": weighted_mean(mlm.correct, weights),
            "tokens": Metric(real_tokens, jnp.ones(())),
        }
        if output.next_sentence_logits is not None:
            weights = batch["next_sentence_weights"]
            nsp = cross_entropy(output.next_sentence_logits, batch["next_sentence_labels"])
            metrics["nsp_loss"] = weighted_mean(nsp.loss, weights)
            metrics["nsp_accuracy"] = weighted_mean(nsp.correct, weights)
        assert metrics.keys() == {*metric_names(self.next_sentence), "tokens"}
        return metrics
