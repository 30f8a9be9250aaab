"""Compute multi-head self-attention over rows that may hold multiple documents."""

from __future__ import annotations

from typing import NamedTuple, assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig, Ops
from bert_jax.models.layers import constrain, dense
from bert_jax.models.ops import attention_scores, dropout, weighted_values, with_ops


def document_mask(document_ids: jax.Array) -> jax.Array:
    """Return the mask [batch, 1, length, length] that lets tokens attend within their document.

    Padding (document id 0) attends only to padding, so no softmax is taken over an empty set.
    """
    return (document_ids[:, :, None] == document_ids[:, None, :])[:, None]


def scaled_scores(query: jax.Array, key: jax.Array, ops: Ops = "fast") -> jax.Array:
    """Return the scaled dot product of every query with every key, unmasked.

    Args:
      query: [batch, length, num_heads, head_dim].
      key: same shape as `query`.
      ops: see `ComputeConfig`.

    Returns:
      float32 [batch, num_heads, from, to], divided by the square root of `head_dim` (Vaswani et
      al. 2017, section 3.2.1).
    """
    scaled = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    return with_ops(attention_scores, ops)(scaled, key)


def attention_probabilities(
    scores: jax.Array, document_ids: jax.Array | None, packed: bool
) -> jax.Array:
    """Take the softmax of the scores over the tokens to which each token may attend.

    Args:
      scores: see `scaled_scores`.
      document_ids: [batch, length], or None to let every token attend to every token.
      packed: see `SelfAttention.__call__`.

    Returns:
      float32 [batch, num_heads, from, to].
    """
    if document_ids is not None:
        # In a row with one document, padding attends to the tokens, as it does in cuDNN's kernel
        # and in other BERT implementations. This matters because the softmax over span positions
        # includes padding.
        visible = document_mask(document_ids) if packed else (document_ids != 0)[:, None, None, :]
        scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    return jax.nn.softmax(scores, axis=-1)


def xla_attention(
    scores: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    ops: Ops = "fast",
) -> jax.Array:
    """Return the values weighted by a float32 softmax (Vaswani et al. 2017, section 3.2.1).

    Args:
      scores: see `scaled_scores`.
      value: [batch, length, num_heads, head_dim].
      document_ids: [batch, length], or None to let every token attend to every token.
      packed: see `SelfAttention.__call__`.
      dropout_rate: dropout rate for the attention probabilities.
      dropout_key: None during evaluation.
      ops: see `ComputeConfig`.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `value`.
    """
    probabilities = attention_probabilities(scores, document_ids, packed).astype(value.dtype)
    probabilities = dropout(probabilities, dropout_rate, dropout_key, ops)
    return with_ops(weighted_values, ops)(probabilities, value)


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
) -> jax.Array:
    """Compute attention with cuDNN's fused kernel, without dropout.

    For a row with one document, the kernel needs only the row's length; for a `packed` row, it
    needs the full mask. For the shapes, see `xla_attention`; `query` and `key` have the same shape
    as `value`.
    """
    if document_ids is None:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")
    if packed:
        mask = document_mask(document_ids)
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    # Keep at least one key even in an empty row: the softmax over an empty set is NaN.
    lengths = jnp.maximum(jnp.sum(document_ids != 0, axis=1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=lengths, implementation="cudnn"
    )


class Projections(NamedTuple):
    """Queries, keys and values for all heads, each [batch, length, num_heads, head_dim]."""

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
        self.query = dense(dim, dim, ("embed", "heads"), config, compute, rngs)
        self.key = dense(dim, dim, ("embed", "heads"), config, compute, rngs)
        self.value = dense(dim, dim, ("embed", "heads"), config, compute, rngs)
        self.output = dense(dim, dim, ("heads", "embed"), config, compute, rngs)

    def __call__(
        self,
        x: jax.Array,
        document_ids: jax.Array | None,
        packed: bool,
        dropout_key: jax.Array | None,
        *,
        return_scores: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """Attend within each document.

        Args:
          x: [batch, length, hidden_dim].
          document_ids: [batch, length]; 0 for padding, and the same positive number for all tokens
            of a document. An ordinary 0/1 attention mask is the special case in which each row
            holds one document followed by padding.
          packed: whether a row may contain multiple documents.
          dropout_key: None during evaluation.
          return_scores: whether to also return the attention scores.

        Returns:
          The output, which has the shape of `x`, and the `scaled_scores` (None unless requested).
        """
        query, key, value = self.project(x)
        scores = None
        if self.backend == "xla" or return_scores:
            scores = scaled_scores(query, key, self.ops)
        match self.backend:
            case "cudnn":
                attended = cudnn_attention(query, key, value, document_ids, packed)
            case "xla":
                assert scores is not None
                attended = xla_attention(
                    scores,
                    value,
                    document_ids,
                    packed,
                    self.config.attention_dropout,
                    dropout_key,
                    self.ops,
                )
            case "auto":
                raise ValueError(
                    "compute.attention='auto': the backend depends on the device. Set 'xla' or "
                    "'cudnn', or pass ComputeConfig.resolve(jax.devices()[0], config)"
                )
            case _:
                assert_never(self.backend)
        return self.output(attended.reshape(x.shape)), scores if return_scores else None

    def project(self, x: jax.Array) -> Projections:
        """Project `x` [batch, length, hidden_dim] to queries, keys and values for all heads."""
        heads = (*x.shape[:-1], self.config.num_heads, self.config.head_dim)
        axes = ("batch", None, "heads", None)
        return Projections(
            constrain(self.query(x).reshape(heads), *axes),
            constrain(self.key(x).reshape(heads), *axes),
            constrain(self.value(x).reshape(heads), *axes),
        )
