"""Losses shared by tasks."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class CrossEntropy(NamedTuple):
    """Per position: loss in nats and whether the label had the highest logit (1.0 or 0.0)."""

    loss: jax.Array
    correct: jax.Array


def cross_entropy(logits: jax.Array, labels: jax.Array) -> CrossEntropy:
    """Softmax cross-entropy with integer labels, in float32.

    Args:
      logits: [..., classes].
      labels: [...] integers in [0, classes).
    """
    rows = logits.astype(jnp.float32).reshape(-1, logits.shape[-1])
    loss, correct = _cross_entropy(rows, labels.reshape(-1))
    return CrossEntropy(loss.reshape(labels.shape), correct.reshape(labels.shape))


@jax.custom_vjp
def _cross_entropy(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
    loss, correct, _ = _loss_and_normaliser(logits, labels)
    return loss, correct


def _loss_and_normaliser(
    logits: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    label_logit = jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[..., 0]
    highest = jnp.max(logits, axis=-1)
    normaliser = highest + jnp.log(jnp.sum(jnp.exp(logits - highest[..., None]), axis=-1))
    correct = (label_logit >= highest).astype(jnp.float32)
    return normaliser - label_logit, correct, normaliser


def _forward(
    logits: jax.Array, labels: jax.Array
) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
    loss, correct, normaliser = _loss_and_normaliser(logits, labels)
    return (loss, correct), (logits, labels, normaliser)


def _backward(
    residuals: tuple[jax.Array, jax.Array, jax.Array], cotangents: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, None]:
    # Softmax less one-hot in one pass over the logits: the gather of the forward pass,
    # differentiated as it stands, would scatter into an array as large as them.
    logits, labels, normaliser = residuals
    classes = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1)
    probabilities = jnp.exp(logits - normaliser[..., None])
    gradient = probabilities - (classes == labels[..., None])
    return gradient * cotangents[0][..., None], None


_cross_entropy.defvjp(_forward, _backward)
