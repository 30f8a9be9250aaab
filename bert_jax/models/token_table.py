"""Use the token table: look up its rows, and compute the logits of all tokens."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from bert_jax.models.layout import constrain, is_divided, scatter
from bert_jax.models.products import logit_gradients, logits, product

# The logical axes of the token table when it is used and when it is stored.
_USED = ("vocab", None)
_STORED = ("vocab", "embed")


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def look_up(table: jax.Array, token_ids: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Look up rows [..., dim] of a float32 `table` [vocab, dim] and return them in `dtype`.

    Gradients are accumulated in float32: a batch contains thousands of `[MASK]` tokens, and after
    4,096 additions in bfloat16, the gradient was off by 6% to 77%.
    """
    return jnp.take(_used(table, dtype), token_ids, axis=0, mode="clip")


def _look_up_forward(
    table: jax.Array, token_ids: jax.Array, dtype: jnp.dtype
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return look_up(table, token_ids, dtype), (table, token_ids)


def _look_up_backward(
    dtype: jnp.dtype, residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None]:
    table, token_ids = residuals
    rows = jnp.clip(token_ids, 0, len(table) - 1)
    zeros = jnp.zeros(table.shape, jnp.float32)
    gradient = zeros.at[rows].add(cotangent.astype(jnp.float32), mode="promise_in_bounds")
    return constrain(gradient, *_STORED), None


look_up.defvjp(_look_up_forward, _look_up_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def token_logits(x: jax.Array, table: jax.Array, bias: jax.Array, tied: bool) -> jax.Array:
    """Return the dot products of vectors `x` and the rows of a float32 `table`, plus `bias`.

    Args:
      x: [rows, dim], in the compute dtype.
      table: [vocab, dim], which is rounded to the compute dtype.
      bias: float32 [vocab].
      tied: whether `look_up` also uses the table.

    Returns:
      float32 [rows, vocab].
    """
    return logits(x, _used(table, x.dtype), bias)


def _used(table: jax.Array, dtype: jnp.dtype) -> jax.Array:
    # Every device needs whole rows. If the table were split by feature, every lookup would move the
    # embedded batch between devices, and this batch is larger than the table.
    return constrain(table.astype(dtype), *_USED)


def _token_logits_forward(
    x: jax.Array, table: jax.Array, bias: jax.Array, tied: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    assert table.dtype == bias.dtype == jnp.float32, (table.dtype, bias.dtype)
    used = _used(table, x.dtype)
    return logits(x, used, bias), (x, used)


def _token_logits_backward(
    tied: bool, operands: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def table_gradient(cotangent: jax.Array, x: jax.Array) -> jax.Array:
        # If the batch is split over devices that hold whole rows of the table, the devices also sum
        # the float32 gradient of `look_up`. XLA sums that gradient and this one together if they
        # have the same dtype, so this one is computed in float32 too. For BERT-base, the devices
        # then exchange 94 MB instead of 141 MB. On a single GPU, a float32 result would only move
        # 94 MB more through memory.
        if tied and is_divided("batch") and not is_divided("embed"):
            return jnp.einsum("nv,nd->vd", cotangent, x, preferred_element_type=jnp.float32)
        return product("nv,nd->vd", cotangent, x, jnp.dtype(jnp.float32))

    to_x, to_table, to_bias = logit_gradients(*operands, cotangent, table_gradient)
    # With the sharding of `_USED`, every device would sum the whole gradient although it stores
    # only part of it.
    return to_x, scatter(to_table, _STORED), to_bias


token_logits.defvjp(_token_logits_forward, _token_logits_backward)
