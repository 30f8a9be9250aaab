"""Compare a student's hidden states and attention scores with its teacher's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.models.attention import document_mask, window_mask
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


def attention_loss(
    student: Sequence[jax.Array],
    teacher: jax.Array,
    windows: Sequence[int | None],
    document_ids: jax.Array,
) -> Metric:
    """Return the mean squared error over heads and visible pairs, summed over the layers.

    The error is computed from attention scores before the softmax, because training on scores
    converges faster than training on probabilities (Jiao et al. 2020, equation 7).

    Args:
      student: the attention scores in each of the student's layers, each [batch, heads, from, to].
      teacher: [batch, layers, heads, from, to].
      windows: the window of each layer; see `compared_windows`.
      document_ids: [batch, length]; see `Encoder.__call__`.
    """
    sums = []
    for window in dict.fromkeys(windows):
        pairs = pair_weights(document_ids, window)
        total = jnp.zeros(pairs.shape, jnp.float32)
        for number, (scores, own) in enumerate(zip(student, windows, strict=True)):
            if own == window:
                total += jnp.mean(jnp.square(scores - teacher[:, number]), axis=1)
        sums.append(jnp.sum(total * pairs))
    return Metric(functools.reduce(operator.add, sums), jnp.sum(pair_weights(document_ids)))


def cosine(left: jax.Array, right: jax.Array) -> jax.Array:
    """Return the float32 cosines [...] of the angles between vectors [..., dim]."""
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    product = jnp.sum(left * right, axis=-1)
    squares = jnp.sum(left * left, axis=-1) * jnp.sum(right * right, axis=-1)
    return product * jax.lax.rsqrt(jnp.maximum(squares, 1e-12))


def pair_weights(document_ids: jax.Array, window: int | None = None) -> jax.Array:
    """Return the weight of each pair of tokens in `attention_loss`, float32 [batch, from, to].

    Without a window, the weight is 1.0 if both tokens belong to one document, else 0.0. With a
    window, pairs that are too far apart have the weight 0, and the other weights of a token are
    scaled up so that their sum stays the same. Every layer therefore has the same weight in the
    loss, regardless of its window.

    Args:
      document_ids: [batch, length]; see `Encoder.__call__`.
      window: the number of tokens that a token attends to, including itself; None for all.
    """
    visible = document_mask(document_ids)[:, 0] & (document_ids != 0)[:, :, None]
    if window is None:
        return visible.astype(jnp.float32)
    near = visible & window_mask(document_ids.shape[1], window)[0]
    counts, near_counts = (jnp.sum(pairs, axis=2, keepdims=True) for pairs in (visible, near))
    return near * (counts / jnp.maximum(near_counts, 1)).astype(jnp.float32)
