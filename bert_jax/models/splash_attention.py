"""Compute attention on TPUs with JAX's fused kernel, over a whole row or a sliding window.

The kernel never stores the attention scores (Dao et al. 2022, "FlashAttention"). It works on blocks
of queries and keys, and skips the blocks outside the window. The cost of a layer with local
attention is therefore linear in the length.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.interpreter import is_interpreted
from bert_jax.models.layout import on_every_device
from bert_jax.models.rematerialization import ATTENDED

# The kernel's blocks have a multiple of this number of queries and keys.
_LANES = 128
# The kernel's usual block size for long rows. It has not been tuned for this package.
_MAX_BLOCK = 512
_OUTSIDE = -1  # document id of padding past the end of a row


def splash_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    window: int | None,
) -> jax.Array:
    """Let each token attend to the tokens in its document, or to those within a window around it.

    Up to rounding, the result is the same as for attention with a mask. In a row with one document,
    a padding query may see no key, because the row is empty or its tokens are too far away. The
    result for this query is then zero, as in PyTorch's `scaled_dot_product_attention`.

    Args:
      query: [batch, length, num_heads, head_dim].
      key: same shape and dtype as `query`.
      value: same shape and dtype as `query`.
      document_ids: [batch, length], or None if all tokens of a row are in one document.
      packed: whether a row may contain multiple documents. If so, padding attends to padding;
        otherwise it attends to the document's tokens.
      window: the number of tokens that each token attends to, an odd number that includes the
        token itself; None for all tokens.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `query`.
    """
    scaled = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    segments = _segments(document_ids, packed, *query.shape[:2])
    heads, row = ("batch", None, "heads", None), ("batch", None)
    attended = on_every_device(
        functools.partial(_attend, window=window),
        (scaled, key, value, *segments),
        (heads, heads, heads, *(row for _ in segments)),
        heads,
    )
    if document_ids is None or packed:
        return attended
    seen = _sees_a_token(document_ids, window)[:, :, None, None]
    return jnp.where(seen, attended, jnp.zeros((), attended.dtype))


def _segments(
    document_ids: jax.Array | None, packed: bool, rows: int, length: int
) -> tuple[jax.Array, ...]:
    """Return the segment ids of the queries and of the keys, or () if every query sees every key.

    A query sees the keys that have the same segment id. Both arrays have the shape [rows, length],
    with the length rounded up to whole blocks.
    """
    if document_ids is None:
        if length % _LANES == 0:
            return ()
        document_ids, packed = jnp.ones((rows, length), jnp.int32), False
    widths = ((0, 0), (0, -length % _LANES))
    if packed:
        ids = jnp.pad(document_ids, widths, constant_values=_OUTSIDE)
        return ids, ids
    keys = jnp.pad((document_ids != 0).astype(jnp.int32), widths)
    return jnp.ones_like(keys), keys


def _sees_a_token(document_ids: jax.Array, window: int | None) -> jax.Array:
    """Return whether each query sees any token, [batch, length] or [batch, 1]."""
    tokens = (document_ids != 0).astype(jnp.int32)
    if window is None:
        return jnp.any(tokens != 0, axis=1, keepdims=True)
    near = jax.lax.reduce_window(tokens, np.int32(0), jax.lax.max, (1, window), (1, 1), "SAME")
    return near != 0


def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *segments: jax.Array,
    window: int | None,
) -> jax.Array:
    """Run the kernel on one device's rows and heads."""
    from jax.experimental.pallas.ops.tpu.splash_attention import SegmentIds

    length, num_heads = query.shape[1:3]
    after = -length % _LANES
    kernel = _kernel(num_heads, length + after, window, is_interpreted())

    def by_head(x: jax.Array) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, after), (0, 0), (0, 0))).swapaxes(1, 2)

    operands = [by_head(x) for x in (query, key, value)]
    attended: jax.Array = jax.vmap(kernel)(*operands, SegmentIds(*segments) if segments else None)
    return attended.swapaxes(1, 2)[:, :length]


@functools.lru_cache(maxsize=32)  # equal layers share a kernel, which is traced only once
def _kernel(num_heads: int, length: int, window: int | None, interpret: bool) -> Any:
    """Return the kernel, which maps arrays [num_heads, length, head_dim] of a row to the output."""
    from jax.experimental.pallas.ops.tpu.splash_attention import (
        BlockSizes,
        FullMask,
        LocalMask,
        MultiHeadMask,
        make_splash_mha,
    )

    shape, reach = (length, length), length if window is None else window // 2
    mask = FullMask(shape) if window is None else LocalMask(shape, (reach, reach), offset=0)
    size = block_size(length, reach)
    blocks = BlockSizes(
        block_q=size,
        block_kv=size,
        block_q_dkv=size,
        block_kv_dkv=size,
        block_q_dq=size,
        block_kv_dq=size,
    )
    # The kernel contains the arrays that describe the mask. They must not be tracers, since the
    # kernel is used in several traces.
    with jax.ensure_compile_time_eval():
        kernel = make_splash_mha(
            MultiHeadMask([mask] * num_heads),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1,
            residual_checkpoint_name=ATTENDED,
            interpret=interpret,
        )
        return jax.tree.map(np.asarray, kernel)


def block_size(length: int, reach: int) -> int:
    """Return the number of queries and keys in a block.

    A block of keys is not much larger than the window, since a query is multiplied by every key in
    the blocks that overlap with its window.

    Args:
      length: the number of tokens in a row, a multiple of 128.
      reach: the number of tokens that a token sees on each side.
    """
    most = min(_MAX_BLOCK, max(_LANES, reach - reach % _LANES))
    return max(size for size in range(_LANES, most + 1, _LANES) if length % size == 0)
