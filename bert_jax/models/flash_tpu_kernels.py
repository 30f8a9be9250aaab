"""Implement the kernels of `flash_tpu`, in which each program computes some heads of a row.

A program receives blocks [1, tokens, lanes] of a row, in which the heads are next to each other. It
works on tiles of 128 keys and 128 queries of a head, and keeps scores transposed, [keys, queries].
All values that belong to a query (the maximum, the sum, the log-sum-exp) are therefore row vectors,
and sums over keys add whole registers.

A product with a head of 64 dims fills only half of a matrix unit if these dims are contracted or
form the columns of the result. If they form its rows, the product fills the whole unit. Sums over
keys or queries are therefore also computed transposed, [head_dim, tokens].
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from bert_jax.models.flash_tpu_tiles import (
    TILE,
    UNSEEN,
    Blocks,
    Plan,
    Ref,
    Sums,
    Tile,
    interleave,
    split,
    tiles_of,
)

_FLOAT32 = jnp.float32
# The number of tiles by which each stage of a kernel lags behind the stage before it. With a lag of
# 6 instead of 1, the backward kernel's schedule for 512 tokens is a third shorter.
_LAG = 6


def forward_kernel(plan: Plan, *refs: Ref) -> None:
    """Compute attention for some queries of a row and some blocks of heads."""
    own, shared = split(plan, refs)
    query_ref, key_ref, value_ref, attended_ref, sums_ref = own
    peaks: dict[tuple[int, int, int], jax.Array] = {}
    totals: dict[tuple[int, int, int], jax.Array] = {}
    values = Blocks(plan, lambda lanes: value_ref[0, :, lanes].T)
    key_tiles = plan.padded // TILE

    def score(tile: Tile, _: None) -> jax.Array:
        lanes = plan.lanes_of(tile.block)
        key = _only(plan, tile.head, key_ref[0, tile.keys, lanes])
        return _dot(key, query_ref[0, tile.queries, lanes], 1, 1)

    def mask(tile: Tile, scores: jax.Array) -> jax.Array:
        scores = shared.mask(scores, tile)
        peak = jnp.max(scores.reshape(-1, 8, TILE), axis=0)
        unit = (tile.block, tile.head, tile.queries.start)
        peaks[unit] = jnp.maximum(peaks[unit], peak) if unit in peaks else peak
        if tile.keys.stop == plan.padded:
            peak = jnp.max(peaks[unit], axis=0, keepdims=True)
            # Use a peak of 0 for a query that sees no key, so that its exponentials are zero
            # instead of one.
            peaks[unit] = jnp.where(peak > UNSEEN / 2, peak, 0.0) if plan.masked else peak
        return scores

    def weigh(tile: Tile, scores: jax.Array) -> jax.Array:
        unit = (tile.block, tile.head, tile.queries.start)
        weights = jnp.exp(scores - peaks[unit])
        total = jnp.sum(weights.reshape(-1, 8, TILE), axis=0)
        totals[unit] = totals[unit] + total if unit in totals else total
        return shared.drop(weights, tile).astype(query_ref.dtype)

    def attend(tile: Tile, weights: jax.Array) -> None:
        rows = plan.rows_of(tile.head)
        sums.add(tile, tile.queries, _dot(values[tile.block][rows, tile.keys], weights, 1, 0))

    def write(block: int, queries: slice, heads: list[jax.Array]) -> None:
        attended = []
        for head, weighted in enumerate(heads):
            unit = (block, head, queries.start)
            total = jnp.sum(totals[unit], axis=0, keepdims=True)
            if plan.masked:
                total = jnp.where(total > 0.0, total, 1.0)
            sums_ref[0, block, head : head + 1, queries] = peaks[unit] + jnp.log(total)
            attended.append(weighted * (1.0 / (total * (1.0 - plan.rate))))
        attended_ref[0, queries, plan.lanes_of(block)] = _columns(attended, attended_ref.dtype)

    sums = Sums(plan, key_tiles, write)
    tiles = [
        Tile(block, head, keys, queries)
        for block in range(plan.group)
        for head in range(plan.heads)
        for queries in tiles_of(plan.queries)
        for keys in tiles_of(plan.padded)
    ]
    # All scores of a query must be masked before the first of them is converted to a weight.
    delays = (0, _LAG, _LAG + key_tiles, 2 * _LAG + key_tiles)
    interleave(tiles, (score, mask, weigh, attend), delays)


def backward_kernel(plan: Plan, *refs: Ref) -> None:
    """Compute the gradients that come from some queries of a row, for some blocks of heads.

    The gradients for keys and values are sums over the programs of a row, which run in order. With
    w = p * keep / (1 - rate) and delta = sum(do * o), they are dv = w^T do and dk = ds^T q, where
    ds = w * (do v^T) - p * delta. The gradient for queries is dq = ds k. The kernel computes w
    without the factor 1 / (1 - rate), and multiplies the three gradients by this factor instead.
    """
    own, shared = split(plan, refs)
    query_ref, key_ref, value_ref, attended_ref, cotangent_ref, sums_ref = own[:6]
    to_query_ref, to_key_ref, to_value_ref, *kept_sums = own[6:]
    kept = 1.0 - plan.rate
    keys_t = Blocks(plan, lambda lanes: key_ref[0, :, lanes].T)
    queries_t = Blocks(plan, lambda lanes: query_ref[0, :, lanes].T)
    cotangents_t = Blocks(plan, lambda lanes: cotangent_ref[0, :, lanes].T)

    def products(lanes: slice) -> jax.Array:
        attended, cotangent = attended_ref[0, :, lanes], cotangent_ref[0, :, lanes]
        return (attended.astype(_FLOAT32) * cotangent.astype(_FLOAT32) * kept).T

    along = Blocks(plan, products)
    deltas: dict[tuple[int, int], jax.Array] = {}

    def score(tile: Tile, _: None) -> tuple[jax.Array, jax.Array]:
        lanes = plan.lanes_of(tile.block)
        key = _only(plan, tile.head, key_ref[0, tile.keys, lanes])
        value = _only(plan, tile.head, value_ref[0, tile.keys, lanes])
        scores = _dot(key, query_ref[0, tile.queries, lanes], 1, 1)
        return scores, _dot(value, cotangent_ref[0, tile.queries, lanes], 1, 1)

    def weigh(tile: Tile, dots: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        scores, to_weights = dots
        _, head, _, queries = tile
        if (tile.block, head) not in deltas:
            parts = along[tile.block][plan.rows_of(head)]
            deltas[tile.block, head] = jnp.sum(parts, axis=0, keepdims=True)
        sums = sums_ref[0, tile.block, head : head + 1, queries]
        probabilities = jnp.exp(shared.mask(scores, tile) - sums)
        weights = shared.drop(probabilities, tile)
        to_scores = weights * to_weights - probabilities * deltas[tile.block, head][:, queries]
        return weights.astype(query_ref.dtype), to_scores.astype(query_ref.dtype)

    def collect(tile: Tile, weights: tuple[jax.Array, jax.Array]) -> None:
        block, head, keys, queries = tile
        rows, (weight, to_score) = plan.rows_of(head), weights
        to_value.add(tile, keys, _dot(cotangents_t[block][rows, queries], weight, 1, 1))
        to_key.add(tile, keys, _dot(queries_t[block][rows, queries], to_score, 1, 1))
        to_query.add(tile, queries, _dot(keys_t[block][rows, keys], to_score, 1, 0))

    def write(ref: Ref, sum_ref: Ref | None) -> Callable[[int, slice, list[jax.Array]], None]:
        def write_block(block: int, tokens: slice, heads: list[jax.Array]) -> None:
            lanes = plan.lanes_of(block)
            if sum_ref is None:
                gradient = _columns([x * (1.0 / kept) for x in heads], ref.dtype)
            else:
                before = jnp.where(shared.part == 0, 0.0, sum_ref[lanes, tokens])
                total = before + jnp.concatenate(heads, axis=0)
                sum_ref[lanes, tokens] = total
                gradient = _columns([total * (1.0 / kept)], ref.dtype)
            ref[0, tokens, lanes] = gradient

        return write_block

    key_sums, value_sums = kept_sums or (None, None)
    to_query = Sums(plan, plan.padded // TILE, write(to_query_ref, None))
    to_key = Sums(plan, plan.queries // TILE, write(to_key_ref, key_sums))
    to_value = Sums(plan, plan.queries // TILE, write(to_value_ref, value_sums))
    tiles = [
        Tile(block, head, keys, queries)
        for block in range(plan.group)
        for head in range(plan.heads)
        for keys in tiles_of(plan.padded)
        for queries in tiles_of(plan.queries)
    ]
    interleave(tiles, (score, weigh, collect), (0, _LAG, 2 * _LAG))


def _dot(left: jax.Array, right: jax.Array, left_dim: int, right_dim: int) -> jax.Array:
    """Multiply matrices over the given dims, with a float32 result."""
    # By default, a TPU rounds float32 operands to bfloat16.
    exact = left.dtype == _FLOAT32
    return jax.lax.dot_general(
        left,
        right,
        (((left_dim,), (right_dim,)), ((), ())),
        precision=jax.lax.Precision.HIGHEST if exact else jax.lax.Precision.DEFAULT,
        preferred_element_type=_FLOAT32,
    )


def _only(plan: Plan, head: int, x: jax.Array) -> jax.Array:
    """Set the lanes of `x` [tokens, lanes] that belong to other heads to zero."""
    if plan.heads == 1:
        return x
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, plan.lanes), 1)
    # Use `jax.lax.div`, since jnp's `//` cannot be lowered for a TPU on a machine without one.
    own = jax.lax.div(lane, jnp.int32(plan.head_dim)) == head
    return jnp.where(own, x, jnp.zeros((), x.dtype))


def _columns(heads: list[jax.Array], dtype: jnp.dtype) -> jax.Array:
    """Return the arrays [head_dim, tokens] of the heads as one array [tokens, lanes]."""
    return jnp.concatenate(heads, axis=0).astype(dtype).T
