"""Compare a student's hidden states and attention scores with its teacher's."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.models.attention import document_mask
from bert_jax.tasks.task import Metric, weighted_mean


def hidden_loss(student: Sequence[jax.Array], teacher: jax.Array, real: jax.Array) -> Metric:
    """Return the mean squared error over dims and tokens, summed over the hidden states.

    Source: Jiao et al. 2020, equations 8 and 9.

    Args:
      student: the student's hidden states, each [batch, length, dim].
      teacher: [batch, states, length, dim].
      real: [batch, length], 1.0 for tokens and 0.0 for padding.
    """
    total = jnp.zeros(real.shape, jnp.float32)
    for number, state in enumerate(student):
        difference = state.astype(jnp.float32) - teacher[:, number].astype(jnp.float32)
        total += jnp.mean(jnp.square(difference), axis=-1)
    return weighted_mean(total, real)


def attention_loss(student: Sequence[jax.Array], teacher: jax.Array, pairs: jax.Array) -> Metric:
    """Return the mean squared error over heads and visible pairs, summed over the layers.

    The error is computed from attention scores before the softmax, because training on scores
    converges faster than training on probabilities (Jiao et al. 2020, equation 7).

    Args:
      student: the attention scores in each of the student's layers, each [batch, heads, from, to].
      teacher: [batch, layers, heads, from, to].
      pairs: see `visible_pairs`.
    """
    total = jnp.zeros(pairs.shape, jnp.float32)
    for number, scores in enumerate(student):
        total += jnp.mean(jnp.square(scores - teacher[:, number]), axis=1)
    return weighted_mean(total, pairs)


def cosine(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the float32 cosines [...] of the angles between vectors [..., dim]."""
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    product = jnp.sum(left * right, axis=-1)
    squares = jnp.sum(left * left, axis=-1) * jnp.sum(right * right, axis=-1)
    return product * jax.lax.rsqrt(jnp.maximum(squares, 1e-12))


def visible_pairs(document_ids: jax.Array) -> jax.Array:
    """Return float32 [batch, from, to]: 1.0 if both tokens belong to one document, else 0.0."""
    visible = document_mask(document_ids)[:, 0] & (document_ids != 0)[:, :, None]
    return visible.astype(jnp.float32)
