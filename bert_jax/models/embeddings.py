"""Embed tokens, segments and positions, then apply a norm and dropout."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.dropout import dropout
from bert_jax.models.layers import compute_dtype, dense, embedding_table
from bert_jax.models.layout import gather
from bert_jax.models.norms import norm_layer
from bert_jax.models.options import Ops, with_ops
from bert_jax.models.token_table import look_up, token_logits

_ROWS = (None, "embed")  # the logical axes of the tables of positions and segments


def sinusoidal_positions(num_positions: int, dim: int) -> np.ndarray:
    """Return the fixed table [num_positions, dim] from Vaswani et al. 2017, section 3.5.

    Even features are sines and odd features are cosines.
    """
    frequency = np.exp(-math.log(10_000.0) * np.arange(0, dim, 2) / dim)
    angle = np.arange(num_positions)[:, None] * frequency[None, :]
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1).reshape(num_positions, dim)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def spread(rows: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype) -> jax.Array:
    """Cast float32 `rows` to `dtype` and broadcast them to `shape`, which adds leading dims.

    The gradient is accumulated in float32, as in `look_up`, because bfloat16 has only eight
    significant bits. In RoBERTa, which has only one segment, the gradient of its embedding is a sum
    over the millions of tokens in a large batch.
    """
    return jnp.broadcast_to(rows.astype(dtype), shape)


def _spread_forward(
    rows: jax.Array, shape: tuple[int, ...], dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    return spread(rows, shape, dtype), rows


def _spread_backward(
    shape: tuple[int, ...], dtype: jnp.dtype, rows: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array]:
    leading = range(cotangent.ndim - rows.ndim)
    return (jnp.sum(cotangent, axis=tuple(leading), dtype=jnp.float32),)


spread.defvjp(_spread_forward, _spread_backward)


@jax.custom_vjp
def select_segments(table: jax.Array, segment_ids: jax.Array) -> jax.Array:
    """Look up rows [..., dim] of a small `table` [segments, dim] at `segment_ids`.

    The implementation compares ids instead of gathering rows. The gradient of a gather from two
    rows is a scatter into two rows, which took 80 ms of a 180 ms BERT-base step on an H200.
    """
    x = jnp.zeros((), table.dtype)
    for segment in range(len(table)):
        x = x + jnp.where((segment_ids == segment)[..., None], table[segment], 0)
    return x


def _select_forward(
    table: jax.Array, segment_ids: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return select_segments(table, segment_ids), (table, segment_ids)


def _select_backward(
    residuals: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, None]:
    table, segment_ids = residuals

    def summed(segment_ids: jax.Array, cotangent: jax.Array) -> jax.Array:
        selected = (
            jnp.where((segment_ids == segment)[..., None], cotangent, 0)
            for segment in range(len(table))
        )
        leading = range(cotangent.ndim - 1)
        return jnp.stack([jnp.sum(x, axis=leading, dtype=jnp.float32) for x in selected])

    def multiplied(segment_ids: jax.Array, cotangent: jax.Array) -> jax.Array:
        # Use a matmul on CPUs, because XLA's CPU compiler would compute the sums one column at a
        # time, which takes 1.7 ms of a 62 ms step.
        one_hot = jax.nn.one_hot(segment_ids, len(table), dtype=cotangent.dtype)
        return jnp.einsum("bls,bld->sd", one_hot, cotangent, preferred_element_type=jnp.float32)

    gradient = jax.lax.platform_dependent(segment_ids, cotangent, cpu=multiplied, default=summed)
    return gradient.astype(table.dtype), None


select_segments.defvjp(_select_forward, _select_backward)


class EmbeddingParts(NamedTuple):
    """The token, position and segment embeddings of a batch, each [batch, length, table_dim].

    `position` is None for rotary positions, and `segment` for a model without segments.
    """

    token: jax.Array
    position: jax.Array | None
    segment: jax.Array | None


class Embeddings(nnx.Module):
    """The sum of token, segment and position embeddings (Devlin et al. 2019, figure 2).

    If `embedding_dim` is set, a dense layer follows (Lan et al. 2020, section 3.1).
    """

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.config = config
        self.dtype = compute_dtype(compute)
        self.ops = compute.ops
        # With plain operations, JAX accumulates gradients in the dtype of the rows, which must
        # therefore be float32 (see `look_up`).
        rows: dict[Ops, jnp.dtype] = {"fast": self.dtype, "plain": jnp.dtype(jnp.float32)}
        self.rows_dtype = rows[compute.ops]
        dim = config.table_dim
        self.token = embedding_table(config.vocab_size, dim, ("vocab", "embed"), config, rngs)
        if config.positions == "learned":
            self.position = embedding_table(
                config.position_offset + config.max_positions, dim, _ROWS, config, rngs
            )
        if config.num_segments:
            self.segment = embedding_table(config.num_segments, dim, _ROWS, config, rngs)
        if config.embedding_norm:
            self.norm = norm_layer(dim, config, compute, rngs)
        if config.embedding_dim is not None:
            axes = ("embed", None)
            self.projection = dense(
                dim, config.hidden_dim, axes, config, compute, rngs, bias=config.dense_bias
            )

    def __call__(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None,
        position_ids: jax.Array | None,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """Embed a batch.

        Args:
          token_ids: [batch, length] integers.
          segment_ids: [batch, length], or None for all zeros; ignored if there are fewer than two
            segments.
          position_ids: [batch, length], all less than `length`, or None for 0, 1, 2, ...
          dropout_key: None during evaluation.

        Returns:
          [batch, length, hidden_dim] in the compute dtype.

        Raises:
          ValueError: the sequence is longer than `max_positions`.
        """
        x, *others = self.parts(token_ids, segment_ids, position_ids)
        for part in others:
            if part is not None:
                x = x + part
        if self.config.embedding_norm:
            x = self.norm(x)
        x = dropout(x, self.config.hidden_dropout, dropout_key, self.ops)
        return x if self.config.embedding_dim is None else self.projection(x)

    def parts(
        self,
        token_ids: jax.Array,
        segment_ids: jax.Array | None,
        position_ids: jax.Array | None,
    ) -> EmbeddingParts:
        """Return the three embeddings that `__call__` sums; see `__call__` for the arguments."""
        token = with_ops(look_up, self.ops)(self.token[...], token_ids, self.rows_dtype)
        return EmbeddingParts(
            token.astype(self.dtype),
            self._positions(position_ids, token_ids.shape),
            self._segments(segment_ids, token_ids.shape) if self.config.num_segments else None,
        )

    def attend(self, x: jax.Array, bias: jax.Array, table: jax.Array | None = None) -> jax.Array:
        """Return the dot products of `x` [..., table_dim] with all token embeddings, plus `bias`.

        Args:
          x: the vectors, in the compute dtype.
          bias: [vocab_size].
          table: float32 [vocab_size, table_dim], used instead of the token table; None for the
            token table.

        Returns:
          float32 [..., vocab_size].
        """
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        compute = with_ops(token_logits, self.ops)
        tied = table is None
        logits = compute(rows, self.token[...] if table is None else table, bias, tied)
        return logits.reshape(*x.shape[:-1], logits.shape[-1])

    def _positions(
        self, position_ids: jax.Array | None, shape: tuple[int, ...]
    ) -> jax.Array | None:
        length = shape[1]
        if length > self.config.max_positions:
            raise ValueError(
                f"model.max_positions={self.config.max_positions}: too small for sequences of "
                f"{length} tokens. Shorten the sequences or raise max_positions"
            )
        table = self._position_table()
        if table is None:
            return None
        table = table[:length]
        if position_ids is None:
            return self._spread(table, shape)
        table = gather(table, self.dtype, _ROWS)
        # Multiply by a one-hot matrix instead of gathering rows: the gradient of a gather would be
        # a scatter of the whole batch into only `length` rows.
        one_hot = jax.nn.one_hot(position_ids, length, dtype=self.dtype)
        # The precision HIGHEST keeps float32 rows exact, as in `select_rows`.
        return jnp.einsum("blp,pd->bld", one_hot, table, precision=jax.lax.Precision.HIGHEST)

    def _position_table(self) -> jax.Array | None:
        """Return the float32 embeddings [max_positions, table_dim]; None for rotary positions."""
        match self.config.positions:
            case "learned":
                return self.position[...][self.config.position_offset :]
            case "sinusoidal":
                fixed = sinusoidal_positions(self.config.max_positions, self.config.table_dim)
                return jnp.asarray(fixed, dtype=jnp.float32)
            case "rotary":
                return None
            case _:
                assert_never(self.config.positions)

    def _segments(self, segment_ids: jax.Array | None, shape: tuple[int, ...]) -> jax.Array:
        table = self.segment[...]
        if segment_ids is None or len(table) == 1:
            return self._spread(table[0], shape)
        select = with_ops(select_segments, self.ops)
        return select(table.astype(self.rows_dtype), segment_ids).astype(self.dtype)

    def _spread(self, rows: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        full = (*shape, rows.shape[-1])
        return with_ops(spread, self.ops)(rows, full, self.rows_dtype).astype(self.dtype)
