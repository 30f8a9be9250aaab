"""Multi-head self-attention over sequences that may hold several documents."""

from __future__ import annotations

from typing import assert_never

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.models.config import ComputeConfig, EncoderConfig, Ops
from bert_jax.models.layers import constrain, dense
from bert_jax.models.ops import attention_scores, dropout, weighted_values, with_ops


def document_mask(document_ids: jax.Array) -> jax.Array:
    """Who may see whom: [batch, 1, length, length], True within one document.

    Padding (0) sees padding alone, so that no softmax is over nothing.
    """
    return (document_ids[:, :, None] == document_ids[:, None, :])[:, None]


def scaled_scores(query: jax.Array, key: jax.Array, ops: Ops = "fast") -> jax.Array:
    """Of [batch, length, num_heads, head_dim] in float32: [batch, num_heads, from, to].

    The products divided by the root of `head_dim`, nothing hidden (Vaswani et al. 2017, 3.2.1).
    """
    scaled = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    return with_ops(attention_scores, ops)(scaled, key)


def xla_attention(
    scores: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    ops: Ops = "fast",
) -> jax.Array:
    """The values weighted by a softmax in float32 (Vaswani et al. 2017, section 3.2.1).

    Args:
      scores: see `scaled_scores`.
      value: [batch, length, num_heads, head_dim].
      document_ids: [batch, length], or None when nothing is hidden.
      packed: see `SelfAttention`.
      dropout_rate: of the attention probabilities.
      dropout_key: None when evaluating.
      ops: see `ComputeConfig`.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `value`.
    """
    if document_ids is not None:
        # In a row of one document padding sees the tokens, as it does in cuDNN's kernel and in
        # other BERTs: a span's softmax has the scores of padding in it.
        seen = document_mask(document_ids) if packed else (document_ids != 0)[:, None, None, :]
        scores = jnp.where(seen, scores, jnp.finfo(jnp.float32).min)
    probabilities = jax.nn.softmax(scores, axis=-1).astype(value.dtype)
    probabilities = dropout(probabilities, dropout_rate, dropout_key, ops)
    return with_ops(weighted_values, ops)(probabilities, value)


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
) -> jax.Array:
    """cuDNN's fused attention, without dropout; shapes as `xla_attention`.

    A row holding one document needs only its length; `packed` rows need the whole mask.
    """
    if document_ids is None:
        return jax.nn.dot_product_attention(query, key, value, implementation="cudnn")
    if packed:
        mask = document_mask(document_ids)
        return jax.nn.dot_product_attention(query, key, value, mask=mask, implementation="cudnn")
    # At least one key even in an empty row: a softmax over nothing is not a number.
    lengths = jnp.maximum(jnp.sum(document_ids != 0, axis=1, dtype=jnp.int32), 1)
    return jax.nn.dot_product_attention(
        query, key, value, key_value_seq_lengths=lengths, implementation="cudnn"
    )


class SelfAttention(nnx.Module):
    """Query, key, value and output projections around attention (Devlin et al. 2019)."""

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
        """Attends within each document.

        Args:
          x: [batch, length, hidden_dim].
          document_ids: [batch, length]; 0 is padding, equal numbers are one document. The usual
            0/1 attention mask is the case of one document a row, padded at its end.
          packed: whether a row may hold several documents.
          dropout_key: None when evaluating.

        Returns:
          What was attended to, like `x`, and the `scaled_scores` where asked for.
        """
        heads = (*x.shape[:-1], self.config.num_heads, self.config.head_dim)
        axes = ("batch", None, "heads", None)
        query = constrain(self.query(x).reshape(heads), *axes)
        key = constrain(self.key(x).reshape(heads), *axes)
        value = constrain(self.value(x).reshape(heads), *axes)
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
                raise AssertionError("compute.attention is 'auto': call ComputeConfig.resolve")
            case _:
                assert_never(self.backend)
        return self.output(attended.reshape(x.shape)), scores if return_scores else None
