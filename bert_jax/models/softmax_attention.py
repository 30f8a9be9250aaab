"""Apply the softmax to attention scores and weight the values, with its own backward pass."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.barriers import gpu_barrier
from bert_jax.models.dropout import KeepMask, dropout, keep_mask
from bert_jax.models.products import product
from bert_jax.models.rematerialization import ATTENDED

_Saved = tuple[jax.Array, jax.Array, jax.Array | None, jax.Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def softmax_attention(
    scores: jax.Array,
    value: jax.Array,
    dropout_key: jax.Array | None,
    dropout_rate: float,
    mask: KeepMask = keep_mask,
) -> jax.Array:
    """Return the values weighted by a float32 softmax (Vaswani et al. 2017, section 3.2.1).

    For the backward pass, only the probabilities are kept, in the dtype of `value`. The gradient of
    the softmax needs the sum of each row's probabilities times their gradients, which equals the
    dot product of the attended values and their gradient (Dao et al. 2022, appendix B.2).

    Args:
      scores: float32 [batch, num_heads, from, to], masked.
      value: [batch, to, num_heads, head_dim].
      dropout_key: key for dropout of the probabilities; None during evaluation.
      dropout_rate: dropout rate for the probabilities.
      mask: returns the mask of the probabilities to keep.

    Returns:
      [batch, from, num_heads, head_dim] in the dtype of `value`.
    """
    return _forward(scores, value, dropout_key, dropout_rate, mask)[0]


def _forward(
    scores: jax.Array,
    value: jax.Array,
    dropout_key: jax.Array | None,
    dropout_rate: float,
    mask: KeepMask,
) -> tuple[jax.Array, _Saved]:
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    weights = dropout(probabilities, dropout_rate, dropout_key, "plain", mask)
    attended = checkpoint_name(product("bhqk,bkhd->bqhd", weights, value), ATTENDED)
    return attended, (probabilities, value, dropout_key, attended)


def _backward(
    dropout_rate: float, mask: KeepMask, saved: _Saved, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    probabilities, value, key, attended = saved
    key, probabilities, cotangent = gpu_barrier((key, probabilities, cotangent))
    weights = dropout(probabilities, dropout_rate, key, "plain", mask)
    to_value = product("bhqk,bqhd->bkhd", weights, cotangent)
    to_weights = product("bqhd,bkhd->bhqk", cotangent, value)
    dropped = dropout(to_weights, dropout_rate, key, "plain", mask)
    along = jnp.sum(cotangent.astype(jnp.float32) * attended.astype(jnp.float32), axis=-1)
    along = jnp.swapaxes(along, 1, 2)[..., None]
    to_scores = probabilities.astype(jnp.float32) * (dropped.astype(jnp.float32) - along)
    return to_scores, to_value, None


softmax_attention.defvjp(_forward, _backward)
