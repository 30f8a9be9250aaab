"""Compute attention over a sliding window, with memory and FLOPs linear in the length.

A row is cut into blocks of queries. Each block is multiplied only by its band of keys. The band
consists of the block's own tokens and those within reach on either side, which lie in the two
neighboring blocks (Beltagy et al. 2020, "Longformer", section 3.1, use the same pattern). Blocks
are stacked along the batch dim, so the products and the softmax are the same as in dense attention
over shorter rows.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bert_jax.models.dropout import keep_elements, matrix_states
from bert_jax.models.options import Ops, with_ops
from bert_jax.models.products import attention_scores
from bert_jax.models.softmax_attention import softmax_attention

# The number of queries in a block, unless the window reaches farther. On a CPU, blocks of 64, 128
# and 256 were about equally fast, and 64 needed the least memory in training
# (experiments/local_attention).
BLOCK = 64
# Block sizes are multiples of this number. cuDNN needs an even number of queries and keys.
_MULTIPLE = 8
_OUTSIDE = -1  # document id of the positions before and after a row


@dataclass(frozen=True)
class Blocks:
    """How a row is cut into blocks of queries.

    Attributes:
      length: the number of tokens per row.
      count: the number of blocks.
      size: the number of queries in a block. The last block may extend past the end of the row.
      overlap: the number of keys on each side of a block that its band includes; 0 if a single
        block contains the whole row.
    """

    length: int
    count: int
    size: int
    overlap: int


def cut(length: int, window: int, multiple: int = 1) -> Blocks:
    """Choose the blocks for a row of `length` tokens.

    The whole row becomes a single block if this needs no more attention scores than several blocks.
    The size of a single block is rounded up to a multiple of `multiple`.
    """
    assert window >= 1 and window % 2 == 1, window
    reach = window // 2
    size = _round_up(max(BLOCK, reach), _MULTIPLE)
    count = -(-length // size)
    single = _round_up(length, multiple)
    if single * single <= count * size * (size + 2 * reach):
        return Blocks(length, 1, single, 0)
    return Blocks(length, count, size, reach)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def query_blocks(x: jax.Array, blocks: Blocks, fill: int = 0) -> jax.Array:
    """Cut `x` [batch, length, ...] into blocks [batch * count, size, ...], padded with `fill`."""
    return _padded(x, blocks, 0, fill).reshape(-1, blocks.size, *x.shape[2:])


def _padded(x: jax.Array, blocks: Blocks, overlap: int, fill: int) -> jax.Array:
    """Pad the length to whole blocks, plus `overlap` positions on each side."""
    after = blocks.count * blocks.size - blocks.length + overlap
    widths = [(0, 0), (overlap, after), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, widths, constant_values=fill)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def key_bands(x: jax.Array, blocks: Blocks, fill: int = 0) -> jax.Array:
    """Return the band of keys of each block, from `x` [batch, length, ...], padded with `fill`.

    The result has the shape [batch * count, size + 2 * overlap, ...]. A token is in up to three
    bands, so the backward pass sums its cotangents in float32.
    """
    overlap, size, whole = blocks.overlap, blocks.size, blocks.count * blocks.size
    padded = _padded(x, blocks, overlap, fill)

    def shifted(start: int) -> jax.Array:
        return padded[:, start : start + whole].reshape(-1, size, *x.shape[2:])

    before, own, after = shifted(0), shifted(overlap), shifted(2 * overlap)
    return jnp.concatenate([before[:, :overlap], own, after[:, size - overlap :]], axis=1)


def _bands_forward(x: jax.Array, blocks: Blocks, fill: int) -> tuple[jax.Array, jax.Array]:
    # Keep an empty slice of `x`, since the backward pass needs only its dtype and its number of
    # rows.
    return key_bands(x, blocks, fill), x[:, :0]


def _bands_backward(
    blocks: Blocks, fill: int, empty: jax.Array, cotangent: jax.Array
) -> tuple[jax.Array]:
    shape = (empty.shape[0], blocks.length, *empty.shape[2:])

    def bands(x: jax.Array) -> jax.Array:
        return with_ops(key_bands, "plain")(x, blocks, fill)

    _, pull = jax.vjp(bands, jnp.zeros(shape, jnp.float32))
    return (pull(cotangent.astype(jnp.float32))[0].astype(empty.dtype),)


key_bands.defvjp(_bands_forward, _bands_backward)


def visible_keys(
    document_ids: jax.Array | None, rows: int, packed: bool, window: int, blocks: Blocks
) -> jax.Array:
    """Return the mask [rows * count, 1, size, size + 2 * overlap] of the keys that a query sees.

    Args:
      document_ids: [rows, length], or None if all tokens of a row are in one document.
      rows: the number of rows in the batch.
      packed: see `local_attention`.
      window: see `local_attention`.
      blocks: see `cut`.
    """
    if document_ids is None:
        document_ids, packed = jnp.ones((rows, blocks.length), jnp.int32), True
    to = with_ops(key_bands, "plain")(document_ids, blocks, _OUTSIDE)[:, None, None, :]
    if packed:
        visible = query_blocks(document_ids, blocks, _OUTSIDE)[:, None, :, None] == to
    else:
        visible = to > 0
    shape = (blocks.size, blocks.size + 2 * blocks.overlap)
    query = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    key = jax.lax.broadcasted_iota(jnp.int32, shape, 1) - blocks.overlap
    return visible & (jnp.abs(query - key) <= window // 2)


def band_keep_mask(
    blocks: Blocks, key: jax.Array, rate: float, shape: tuple[int, ...]
) -> jax.Array:
    """Return the parts of the `keep_mask` of dense attention that the blocks cover.

    All implementations of local attention therefore drop the same probabilities.

    Args:
      blocks: see `cut`.
      key: see `keep_mask`.
      rate: see `keep_mask`.
      shape: [batch * count, num_heads, size, size + 2 * overlap], the shape of the result.
    """
    rows, num_heads, *pairs = shape
    places = (blocks.count, 1, *pairs)
    start = jax.lax.broadcasted_iota(jnp.uint32, places, 0) * jnp.uint32(blocks.size)
    query = start + jax.lax.broadcasted_iota(jnp.uint32, places, 2)
    # The unsigned indices wrap around for tokens before the start of the row, and in rows of more
    # than 65,536 tokens.
    token = start + jax.lax.broadcasted_iota(jnp.uint32, places, 3) - jnp.uint32(blocks.overlap)
    index = query * jnp.uint32(blocks.length) + token
    states = matrix_states(key, (rows // blocks.count, 1, num_heads))
    first, second = (state[..., None, None] for state in states)
    return keep_elements(index, first, second, rate).reshape(shape)


def local_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    window: int,
    dropout_rate: float,
    dropout_key: jax.Array | None,
    ops: Ops = "fast",
) -> jax.Array:
    """Let each token attend to the `window` tokens around it that are in its document.

    Up to rounding, the result is the same as for dense attention with a mask, and the same
    probabilities are dropped. In a row with one document, a padding query may be so far from the
    last token that it sees no key. Its result is then zero, as in PyTorch's
    `scaled_dot_product_attention`.

    Args:
      query: [batch, length, num_heads, head_dim].
      key: same shape and dtype as `query`.
      value: same shape and dtype as `query`.
      document_ids: [batch, length], or None if all tokens of a row are in one document.
      packed: whether a row may contain multiple documents. If so, padding attends to padding;
        otherwise it attends to the document's tokens. See `SelfAttention.__call__`.
      window: the number of tokens that each token sees, an odd number that includes the token
        itself. Half of the other tokens are on either side.
      dropout_rate: dropout rate for the attention probabilities.
      dropout_key: None during evaluation.
      ops: see `ComputeConfig`.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `value`.
    """
    blocks = cut(query.shape[1], window)
    visible = visible_keys(document_ids, len(query), packed, window, blocks)
    scaled = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    bands = with_ops(key_bands, ops)
    scores = with_ops(attention_scores, ops)(query_blocks(scaled, blocks), bands(key, blocks))
    scores = jnp.where(visible, scores, jnp.finfo(jnp.float32).min)
    attend = with_ops(softmax_attention, ops)
    mask = functools.partial(band_keep_mask, blocks)
    attended = attend(scores, bands(value, blocks), dropout_key, dropout_rate, mask)
    return _joined(attended, visible, blocks)


def cudnn_local_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    window: int,
) -> jax.Array:
    """Compute `local_attention` with cuDNN's fused kernel, without dropout.

    The kernel runs on the same blocks and masks. JAX's `local_window_size` does not help: with
    cuDNN, it supports only windows that end at the query.
    """
    blocks = cut(query.shape[1], window, _MULTIPLE)
    visible = visible_keys(document_ids, len(query), packed, window, blocks)
    attended = jax.nn.dot_product_attention(
        query_blocks(query, blocks),
        key_bands(key, blocks),
        key_bands(value, blocks),
        mask=visible,
        implementation="cudnn",
    )
    return _joined(attended, visible, blocks)


def _joined(attended: jax.Array, visible: jax.Array, blocks: Blocks) -> jax.Array:
    """Join blocks [batch * count, size, ...] into rows, with zeros for queries that see no key."""
    seen = jnp.any(visible, axis=-1)[:, 0, :, None, None]
    attended = jnp.where(seen, attended, jnp.zeros((), attended.dtype))
    rows = attended.reshape(-1, blocks.count * blocks.size, *attended.shape[2:])
    return rows[:, : blocks.length]
