"""What a student learns from inside its teacher: vectors and attention.

Jiao et al. 2020, "TinyBERT: Distilling BERT for Natural Language Understanding", section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from bert_jax.models.attention import document_mask
from bert_jax.tasks.protocol import Metric, weighted_mean


def matched_layers(student: int, teacher: int) -> list[int]:
    """The teacher's layer, counted from 1, that each of the student's learns from.

    Evenly spaced, the last from the last: 3, 6, 9, 12 for 4 out of 12 (section 4.2).

    Raises:
      ValueError: the teacher has fewer.
    """
    if student > teacher:
        raise ValueError(
            f"model.num_layers={student}, but the teacher has {teacher} layers to learn from: "
            "choose fewer, or set distillation.hidden_weight=0 and attention_weight=0"
        )
    return [(number + 1) * teacher // student for number in range(student)]


def hidden_loss(student: Sequence[jax.Array], teacher: jax.Array, real: jax.Array) -> Metric:
    """Mean squared error of vectors over dims and real tokens, summed over `student`'s states.

    student: [batch, length, dim] each. teacher: [batch, states, length, dim]. real: 1.0 at tokens,
    0.0 at padding [batch, length]. Equations 8 and 9.
    """
    total = jnp.zeros(real.shape, jnp.float32)
    for number, state in enumerate(student):
        apart = state.astype(jnp.float32) - teacher[:, number].astype(jnp.float32)
        total += jnp.mean(jnp.square(apart), axis=-1)
    return weighted_mean(total, real)


def attention_loss(student: Sequence[jax.Array], teacher: jax.Array, pairs: jax.Array) -> Metric:
    """Mean squared error of scores over heads and visible pairs, summed over the layers.

    Of scores before the softmax, which the paper found to converge faster than probabilities
    (equation 7).

    student: [batch, heads, from, to] each. teacher: [batch, layers, heads, from, to]. pairs: see
    `visible_pairs`.
    """
    total = jnp.zeros(pairs.shape, jnp.float32)
    for number, scores in enumerate(student):
        total += jnp.mean(jnp.square(scores - teacher[:, number]), axis=1)
    return weighted_mean(total, pairs)


def cosine(left: jax.Array, right: jax.Array) -> jax.Array:
    """The cosine of the angle between vectors [..., dim], in float32: [...]."""
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    product = jnp.sum(left * right, axis=-1)
    squares = jnp.sum(left * left, axis=-1) * jnp.sum(right * right, axis=-1)
    return product * jax.lax.rsqrt(jnp.maximum(squares, 1e-12))


def visible_pairs(document_ids: jax.Array) -> jax.Array:
    """1.0 where one token of a document may see the other, 0.0 elsewhere: [batch, from, to]."""
    seen = document_mask(document_ids)[:, 0] & (document_ids != 0)[:, :, None]
    return seen.astype(jnp.float32)
