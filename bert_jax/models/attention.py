"""Compute multi-head self-attention over rows that may hold multiple documents."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.devices import check_splash_dropout
from bert_jax.models.flash_attention import flash_attention
from bert_jax.models.layers import Dense, layer_dense, select_rows
from bert_jax.models.layout import constrain
from bert_jax.models.local_attention import cudnn_local_attention, local_attention
from bert_jax.models.options import Ops, with_ops
from bert_jax.models.products import attention_scores
from bert_jax.models.rotary import Rotation, rotate
from bert_jax.models.shared_input import apply_each
from bert_jax.models.softmax_attention import softmax_attention
from bert_jax.models.splash_attention import splash_attention


class View(NamedTuple):
    """The tokens that a token attends to in one layer.

    Attributes:
      document_ids: [batch, length]; 0 for padding, and the same positive number for all tokens of a
        document. An ordinary 0/1 attention mask is the special case in which each row holds one
        document followed by padding. None to let every token attend to every token.
      packed: whether a row may contain multiple documents.
      window: the number of nearby tokens that a token attends to, including itself; None for all.
      rotation: the rotation of queries and keys; None without rotary positions.
    """

    document_ids: jax.Array | None
    packed: bool
    window: int | None = None
    rotation: Rotation | None = None


def window_mask(length: int, window: int) -> jax.Array:
    """Return the mask [1, 1, length, length] of pairs of tokens that lie within a window."""
    columns = jnp.arange(length)
    return (jnp.abs(columns[:, None] - columns) <= window // 2)[None, None]


def document_mask(document_ids: jax.Array) -> jax.Array:
    """Return the mask [batch, 1, length, length] that lets tokens attend within their document.

    Padding (document id 0) attends only to padding, so no softmax is taken over an empty set.
    """
    return (document_ids[:, :, None] == document_ids[:, None, :])[:, None]


def scaled_scores(query: jax.Array, key: jax.Array, ops: Ops = "fast") -> jax.Array:
    """Return the scaled dot product of every query with every key, unmasked.

    Args:
      query: [batch, from, num_heads, head_dim].
      key: [batch, to, num_heads, head_dim].
      ops: see `ComputeConfig`.

    Returns:
      float32 [batch, num_heads, from, to], divided by the square root of `head_dim` (Vaswani et
      al. 2017, section 3.2.1).
    """
    scaled = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    return with_ops(attention_scores, ops)(scaled, key)


def visible_tokens(view: View, length: int) -> jax.Array | None:
    """Return the mask of visible tokens, broadcastable to [batch, num_heads, from, to].

    If every token attends to every token, the result is None.
    """
    visible = None
    if view.document_ids is not None:
        # In a row with one document, padding attends to the tokens, as it does in cuDNN's kernel
        # and in other BERT implementations. This matters because the softmax over span positions
        # includes padding.
        ids = view.document_ids
        visible = document_mask(ids) if view.packed else (ids != 0)[:, None, None, :]
    if view.window is None:
        return visible
    near = window_mask(length, view.window)
    return near if visible is None else visible & near


def masked_scores(scores: jax.Array, view: View) -> jax.Array:
    """Return the scores, with the lowest number for tokens that do not attend to each other.

    A padding position may be too far from its row's tokens to attend to any of them. All its scores
    are then equal, so it attends equally to all positions.

    Args:
      scores: see `scaled_scores`.
      view: the tokens that each token attends to.
    """
    visible = visible_tokens(view, scores.shape[-1])
    if visible is None:
        return scores
    return jnp.where(visible, scores, jnp.finfo(jnp.float32).min)


def attention_probabilities(scores: jax.Array, view: View) -> jax.Array:
    """Return the softmax of the masked scores; see `masked_scores`."""
    return jax.nn.softmax(masked_scores(scores, view), axis=-1)


def xla_attention(
    scores: jax.Array,
    value: jax.Array,
    view: View,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    ops: Ops = "fast",
) -> jax.Array:
    """Return the values weighted by a float32 softmax (Vaswani et al. 2017, section 3.2.1).

    Args:
      scores: see `scaled_scores`.
      value: [batch, length, num_heads, head_dim].
      view: the tokens that each token attends to.
      dropout_rate: dropout rate for the attention probabilities.
      dropout_key: None during evaluation.
      ops: see `ComputeConfig`.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `value`.
    """
    attend = with_ops(softmax_attention, ops)
    return attend(masked_scores(scores, view), value, dropout_key, dropout_rate)


def cudnn_attention(query: jax.Array, key: jax.Array, value: jax.Array, view: View) -> jax.Array:
    """Compute attention with cuDNN's fused kernel, without dropout.

    For a row with one document, the kernel needs only the row's length; for a packed row, it needs
    the full mask. The shapes are the same as in `xla_attention`, and `query` and `key` have the
    same shape as `value`.
    """
    ids = view.document_ids
    if view.window is not None:
        return cudnn_local_attention(query, key, value, ids, view.packed, view.window)
    if ids is None:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")
    if view.packed:
        mask = document_mask(ids)
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    # Keep at least one key even in an empty row: the softmax over an empty set is NaN.
    lengths = jnp.maximum(jnp.sum(ids != 0, axis=1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=lengths, implementation="cudnn"
    )


class Projections(NamedTuple):
    """Queries, keys and values for all heads, each [batch, length, num_heads, head_dim].

    Queries may exist for only some of the positions.
    """

    query: jax.Array
    key: jax.Array
    value: jax.Array


class SelfAttention(nnx.Module):
    """Self-attention with query, key, value and output projections (Devlin et al. 2019)."""

    def __init__(self, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs):
        self.config = config
        self.backend = compute.attention
        self.ops = compute.ops
        dim = config.hidden_dim

        def projection() -> Dense:
            # With these backends, a kernel computes the cotangents of queries, keys and values, so
            # XLA cannot sum the bias gradient in the same pass.
            in_kernel = compute.attention in ("flash_tpu", "splash")
            axes = ("embed", "heads")
            return layer_dense(dim, dim, axes, config, compute, rngs, multiply_ones=in_kernel)

        self.query, self.key, self.value = projection(), projection(), projection()
        self.output = layer_dense(dim, dim, ("heads", "embed"), config, compute, rngs)

    def __call__(
        self,
        x: jax.Array,
        view: View,
        dropout_key: jax.Array | None,
        *,
        return_scores: bool = False,
        positions: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attend within each document.

        Args:
          x: [batch, length, hidden_dim].
          view: the tokens that each token attends to.
          dropout_key: None during evaluation.
          return_scores: whether to also return the attention scores.
          positions: [batch, count], the only positions whose output is needed (in evaluation only);
            None for all.

        Returns:
          The output, and the `scaled_scores` of all positions (None unless requested). The output
          has the shape of `x` or, with `positions`, [batch, count, hidden_dim].
        """
        # In an exported program, the row length may be unknown, so rows cannot be cut into blocks.
        in_blocks = view.window is not None and isinstance(x.shape[1], int)
        if positions is not None:
            assert dropout_key is None
            if self.backend == "xla" and not in_blocks and not return_scores:
                return self._attend_from(positions, x, view), None
            output, scores = self(x, view, None, return_scores=return_scores)
            return select_rows(output, positions), scores
        projections = self.project(x, view.rotation)
        scores = None
        if return_scores or (self.backend == "xla" and not in_blocks):
            scores = scaled_scores(projections.query, projections.key, self.ops)
        match self.backend:
            case "cudnn":
                attended = cudnn_attention(*projections, view)
            case "splash":
                if dropout_key is not None:
                    check_splash_dropout(self.config.attention_dropout)
                attended = splash_attention(
                    *projections, view.document_ids, view.packed, view.window
                )
            case "flash_gpu" | "flash_tpu":
                attended = flash_attention(
                    self.backend,
                    *projections,
                    view.document_ids,
                    view.packed,
                    view.window,
                    self.config.attention_dropout,
                    dropout_key,
                )
            case "xla" if in_blocks:
                assert view.window is not None
                attended = local_attention(
                    *projections,
                    view.document_ids,
                    view.packed,
                    view.window,
                    self.config.attention_dropout,
                    dropout_key,
                    self.ops,
                )
            case "xla":
                assert scores is not None
                rate = self.config.attention_dropout
                attended = xla_attention(
                    scores, projections.value, view, rate, dropout_key, self.ops
                )
            case "auto":
                raise ValueError(
                    "compute.attention='auto': the backend depends on the device. Set another "
                    "value, or pass ComputeConfig.resolve(jax.devices()[0], config)"
                )
            case _:
                assert_never(self.backend)
        return self.output(attended.reshape(x.shape)), scores if return_scores else None

    def _attend_from(self, positions: jax.Array, x: jax.Array, view: View) -> jax.Array:
        """Return the output [batch, count, hidden_dim] at `positions` [batch, count].

        Only these positions are projected to queries and attend to other positions.
        """
        projections = self.project(x, view.rotation, positions)
        scores = scaled_scores(projections.query, projections.key, self.ops)
        visible = visible_tokens(view, x.shape[1])
        if visible is not None:
            if visible.shape[2] != 1:  # the mask differs between positions
                mask = jnp.broadcast_to(visible[:, 0], (x.shape[0], *visible.shape[2:]))
                visible = jnp.take_along_axis(mask, positions[..., None], axis=1)[:, None]
            scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
        attended = with_ops(softmax_attention, self.ops)(scores, projections.value, None, 0.0)
        return self.output(attended.reshape(*positions.shape, x.shape[-1]))

    def project(
        self,
        x: jax.Array,
        rotation: Rotation | None = None,
        positions: jax.Array | None = None,
    ) -> Projections:
        """Project `x` [batch, length, hidden_dim] to queries, keys and values for all heads.

        Queries and keys are rotated by `rotation`. If `positions` [batch, count] are given, there
        are queries for these positions only.
        """
        heads, axes = (self.config.num_heads, self.config.head_dim), ("batch", None, "heads", None)

        def split(projected: jax.Array) -> jax.Array:
            return constrain(projected.reshape(*projected.shape[:-1], *heads), *axes)

        if positions is None:
            query, key, value = apply_each((self.query, self.key, self.value), x)
        else:
            query = self.query(select_rows(x, positions))
            key, value = apply_each((self.key, self.value), x)
        query, key, value = split(query), split(key), split(value)
        if rotation is not None:
            query = rotate(query, rotation if positions is None else rotation.at(positions))
            key = rotate(key, rotation)
        return Projections(query, key, value)
