"""Define pretraining by detecting replaced tokens (Clark et al. 2020, "ELECTRA")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.parameters import ModelDefinition, define
from bert_jax.models.replaced_token import ReplacedTokenPair, generator_compute, generator_of
from bert_jax.tasks.pretraining import Pretraining, run
from bert_jax.tasks.task import Batch, Metrics, weighted_mean

REPLACED_TOKEN_METRICS = (
    "mlm_loss",
    "mlm_accuracy",
    "replaced_loss",
    "replaced_accuracy",
    "replaced_precision",
    "replaced_recall",
)


@dataclass(frozen=True)
class ReplacedTokenConfig:
    """The generator and the loss of a run that trains a model to detect replaced tokens.

    A generator predicts the masked tokens. The model, which is the discriminator, reads the text
    with the masked tokens replaced by samples from these predictions, and decides for every token
    whether it was replaced. The defaults are those of ELECTRA-Small (Clark et al. 2020, table 6).

    Attributes:
      generator_size: the generator's width as a fraction of the model's width. The fraction applies
        to the hidden features, the feed-forward features and the heads, and is rounded to whole
        heads. The generator has the same number of layers as the model and shares its embeddings.
      weight: the weight of the discriminator's loss; the generator's masked-LM loss has weight 1.
    """

    generator_size: float = 0.25
    weight: float = 50.0

    def __post_init__(self) -> None:
        if not 0 < self.generator_size <= 1:
            raise ValueError(
                f"replaced_token.generator_size={self.generator_size}: must be above 0 and at "
                "most 1."
            )
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"replaced_token.weight={self.weight}: must be positive and finite.")


class ReplacedToken:
    """Pretraining on the generator's masked-LM loss plus the weighted loss of the discriminator.

    The discriminator's loss is the binary cross-entropy with the label "replaced", averaged over
    all tokens except padding. A sampled token that equals the original counts as original. No
    gradient flows through the sampling, so the generator learns only from the masked-LM loss.

    The samples depend only on the dropout key. In an evaluation, which has no such key, they depend
    only on the masked tokens. Batches are the same as for `Pretraining` without sentence pairs.

    Source: Clark et al. 2020, section 2.

    Args:
      config: the discriminator's architecture.
      compute: options for the computation.
      settings: the generator's size and the weight of the discriminator's loss.
    """

    definition: ModelDefinition[ReplacedTokenPair]
    loss_terms: Mapping[str, float]

    def __init__(
        self, config: EncoderConfig, compute: ComputeConfig, settings: ReplacedTokenConfig
    ):
        self.compute = compute
        self.settings = settings
        self.generator = generator_of(config, settings.generator_size)
        options = generator_compute(self.generator, compute)
        self._masked_lm = Pretraining(self.generator, options, sentence_pairs="none")

        def build(rngs: nnx.Rngs) -> ReplacedTokenPair:
            return ReplacedTokenPair(config, self.generator, compute, rngs)

        self.definition = define(build)
        self.loss_terms = {"mlm_loss": 1.0, "replaced_loss": settings.weight}

    def on(self, config: EncoderConfig) -> ReplacedToken:
        """Return the same task for another encoder."""
        return ReplacedToken(config, self.compute, self.settings)

    def loss_weights(self, batch: Batch) -> dict[str, jax.Array]:
        """See `Task.loss_weights`."""
        return {
            **self._masked_lm.loss_weights(batch),
            "replaced_loss": jnp.sum(_real_tokens(batch)),
        }

    def metrics(
        self, model: ReplacedTokenPair, batch: Batch, dropout_key: jax.Array | None
    ) -> Metrics:
        """Return the metrics in `REPLACED_TOKEN_METRICS`, with losses in nats, and `tokens`.

        Precision is the fraction of correct predictions among the tokens classified as replaced.
        Recall is the fraction of the replaced tokens that were classified as replaced.
        """
        if dropout_key is None:
            keys = None, noise_key(batch), None
        else:
            keys = tuple(jax.random.split(dropout_key, 3))
        output = run(model.whole_generator(), batch, batch["masked_positions"], keys[0])
        metrics = self._masked_lm.metrics_of(output, batch)
        given, replaced = replace_tokens(batch, sample(output.token_logits, keys[1]))
        packed = batch["cls_positions"].shape[1] > 1
        hidden = model.encoder(
            given,
            batch["segment_ids"],
            batch["position_ids"] if packed else None,
            batch["document_ids"],
            packed=packed,
            dropout_key=keys[2],
        ).hidden
        logits = model.replaced_token(hidden)
        return metrics | _detection(logits, replaced, _real_tokens(batch))


def noise_key(batch: Batch) -> jax.Array:
    """Return a random key that depends only on the batch's masked tokens."""
    total = jnp.sum(batch["masked_labels"].astype(jnp.uint32))
    return jax.random.fold_in(jax.random.key(0), total)


def sample(logits: jax.Array, key: jax.Array) -> jax.Array:
    """Sample one class per row from the softmax of `logits` [..., classes], with Gumbel noise.

    The samples are the same on every mesh, and have no gradient.
    """
    logits = jax.lax.stop_gradient(logits)
    return jnp.argmax(logits + jax.random.gumbel(key, logits.shape, logits.dtype), axis=-1)


def replace_tokens(batch: Batch, sampled: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Replace all masked tokens, including those that the masking left unchanged.

    Args:
      batch: a batch with `token_ids` [batch, length] and the masked positions.
      sampled: [batch, predictions], the new token at every masked position.

    Returns:
      The new token ids [batch, length], and a float32 array of the same shape that is 1 for tokens
      that differ from the original ones.
    """
    positions, ids = batch["masked_positions"], batch["token_ids"]
    counts = batch["masked_weights"] > 0
    # Compare positions instead of scattering, so that every row stays on its device.
    at = (positions[:, None, :] == jnp.arange(ids.shape[1])[:, None]) & counts[:, None, :]
    masked = jnp.any(at, axis=-1)
    tokens = jnp.sum(jnp.where(at, sampled[:, None, :], 0), axis=-1)
    differs = sampled != batch["masked_labels"]
    replaced = jnp.any(at & differs[:, None, :], axis=-1)
    return jnp.where(masked, tokens, ids).astype(ids.dtype), replaced.astype(jnp.float32)


def _detection(logits: jax.Array, replaced: jax.Array, real: jax.Array) -> Metrics:
    """Return the discriminator's metrics for `logits` [batch, length]; `real` is 0 for padding."""
    # The cross-entropy is -log sigmoid(x) for replaced tokens, and -log sigmoid(-x) for all others.
    losses = jnp.logaddexp(0.0, logits) - logits * replaced
    detected = (logits > 0).astype(jnp.float32)
    correct = (detected == replaced).astype(jnp.float32)
    return {
        "replaced_loss": weighted_mean(losses, real),
        "replaced_accuracy": weighted_mean(correct, real),
        "replaced_precision": weighted_mean(replaced, detected * real),
        "replaced_recall": weighted_mean(detected, replaced * real),
    }


def _real_tokens(batch: Batch) -> jax.Array:
    return (batch["document_ids"] != 0).astype(jnp.float32)
