"""Pool token vectors into sentence embeddings."""

from __future__ import annotations

from typing import assert_never

import jax
import jax.numpy as jnp

from bert_jax.sentence_embedding import PoolingMode, SentenceEmbedding

# Lower bound on the length that normalization divides by.
_SHORTEST = 1e-12


def sentence_vectors(
    hidden: jax.Array,
    attention_mask: jax.Array,
    skipped: jax.Array | int,
    settings: SentenceEmbedding,
) -> jax.Array:
    """Pool the token vectors of each text according to `settings`.

    Args:
      hidden: [batch, length, hidden_dim], the last layer's output.
      attention_mask: [batch, length], 1 for tokens and 0 for the padding that follows them.
      skipped: the number of tokens at the beginning that are not pooled.
      settings: the settings, of which pooling, normalize and truncate_dim are used.

    Returns:
      float32 [batch, number of modes * hidden_dim], truncated to `truncate_dim` values per row.

    Source: Reimers and Gurevych 2019 ("Sentence-BERT"), section 3; weightedmean: Muennighoff 2022
    ("SGPT"), section 3.1.
    """
    hidden = hidden.astype(jnp.float32)
    kept = (attention_mask > 0) & (jnp.arange(hidden.shape[1]) >= skipped)
    vectors = jnp.concatenate([_pooled(mode, hidden, kept) for mode in settings.pooling], axis=-1)
    if settings.normalize:
        lengths = jnp.linalg.norm(vectors, axis=-1, keepdims=True)
        vectors = vectors / jnp.maximum(lengths, _SHORTEST)
    return vectors[:, : settings.truncate_dim]


def _pooled(mode: PoolingMode, hidden: jax.Array, kept: jax.Array) -> jax.Array:
    """Pool hidden [batch, length, hidden_dim] over `kept` [batch, length]; [batch, hidden_dim]."""
    length = hidden.shape[1]
    weights = kept.astype(jnp.float32)[..., None]
    match mode:
        case "cls":
            return _at(hidden, jnp.argmax(kept, axis=1))
        case "lasttoken":
            return _at(hidden, length - 1 - jnp.argmax(kept[:, ::-1], axis=1))
        case "max":
            return jnp.where(kept[..., None], hidden, -jnp.inf).max(axis=1)
        case "mean":
            return (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
        case "mean_sqrt_len_tokens":
            return (hidden * weights).sum(axis=1) / jnp.sqrt(jnp.maximum(weights.sum(axis=1), 1))
        case "weightedmean":
            # Weighted by position, from 1: in a decoder, later tokens have more context.
            weights = weights * jnp.arange(1, length + 1, dtype=jnp.float32)[:, None]
            return (hidden * weights).sum(axis=1) / jnp.maximum(weights.sum(axis=1), 1)
    assert_never(mode)


def _at(hidden: jax.Array, places: jax.Array) -> jax.Array:
    """Return the vector [batch, hidden_dim] at one place [batch] of each row."""
    return jnp.take_along_axis(hidden, places[:, None, None], axis=1)[:, 0]
