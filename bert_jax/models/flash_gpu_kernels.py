"""Define the attention kernels that Triton compiles for NVIDIA GPUs.

Each program of a kernel works on one head of one row, and on one block of its queries or keys. It
loops over the blocks of keys or queries that its own block may see (Dao 2023, "FlashAttention-2",
algorithms 1 and 2). Each ref covers a whole row of one head: [length, head_dim], or [length] for
one number per token.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.models.dropout import keep_elements
from bert_jax.models.flash_gpu_blocks import Rows, visited_blocks

_LOG2_E = math.log2(math.e)
# `_HIDDEN` is the dot product assigned to a query and a hidden key, and `_LOWEST` is the initial
# maximum of a query's dot products. `_HIDDEN` is so much lower that the probability of a hidden key
# is exactly 0, even if the query has not seen any other key yet.
_HIDDEN = -1e30
_LOWEST = -1e20


class SegmentRefs(NamedTuple):
    """The segments of a row, and the blocks that share a segment with the program's own block.

    Attributes:
      query: int32 [length], the segment of each query.
      key: int32 [length], the segment of each key.
      blocks: int32 [2], the first block to visit and the block after the last. A program for
        queries visits blocks of keys, and a program for keys visits blocks of queries.
    """

    query: Any
    key: Any
    blocks: Any


def _loop(
    start: Any,
    size: int,
    other: int,
    rows: Rows,
    segments: SegmentRefs | None,
    step: Callable[[Any, Any], Any],
    carry: Any,
) -> Any:
    """Call `step` with the start of each block to visit and the carry; return the last carry."""
    first, end = visited_blocks(start, size, other, rows)
    if segments is not None:
        first = jnp.maximum(first, segments.blocks[0])
        end = jnp.minimum(end, segments.blocks[1])
    return jax.lax.fori_loop(
        jnp.int32(first), jnp.int32(end), lambda block, carry: step(block * other, carry), carry
    )


def _load(ref: Any, start: Any, size: int, rows: Rows) -> jax.Array:
    """Load the values of `size` tokens, with 0 for tokens after the end of the row."""
    index = (pl.ds(start, size), *[slice(None)] * (len(ref.shape) - 1))
    if rows.length % size == 0:
        return triton.load(ref.at[index])
    return triton.load(ref.at[index], mask=_inside(start, size, ref, rows), other=0)


def _store(ref: Any, start: Any, values: jax.Array, rows: Rows) -> None:
    size = len(values)
    index = (pl.ds(start, size), *[slice(None)] * (values.ndim - 1))
    mask = None if rows.length % size == 0 else _inside(start, size, ref, rows)
    triton.store(ref.at[index], values.astype(ref.dtype), mask=mask)


def _inside(start: Any, size: int, ref: Any, rows: Rows) -> jax.Array:
    """Return which elements of a block of `ref` are before the end of the row."""
    inside = start + jnp.arange(size) < rows.length
    if len(ref.shape) == 1:
        return inside
    return jnp.broadcast_to(inside[:, None], (size, ref.shape[1]))


def _along(vector: jax.Array, dim: int) -> jax.Array:
    """Return a column (if `dim` is 0) or a row (if it is 1) with the elements of `vector`."""
    return vector[:, None] if dim == 0 else vector[None, :]


class _Pairs:
    """All pairs of a query in one block and a key in another, [queries, keys].

    If transposed, arrays have the shape [keys, queries].
    """

    def __init__(
        self,
        query_start: Any,
        key_start: Any,
        rows: Rows,
        segments: SegmentRefs | None,
        states: Any,
        transposed: bool = False,
    ) -> None:
        self.rows, self.segments, self.states = rows, segments, states
        self.query_start, self.key_start = query_start, key_start
        self.query_dim, self.key_dim = (1, 0) if transposed else (0, 1)
        self.query = _along(query_start + jnp.arange(rows.query_block), self.query_dim)
        self.key = _along(key_start + jnp.arange(rows.key_block), self.key_dim)

    def masked(self, products: jax.Array) -> jax.Array:
        """Replace the dot products of queries and hidden keys with a very low number."""
        rows, visible = self.rows, []
        if rows.length % rows.key_block:
            visible.append(self.key < rows.length)
        if rows.reach is not None:
            visible.append(jnp.abs(self.query - self.key) <= rows.reach)
        if self.segments is not None:
            query = _load(self.segments.query, self.query_start, rows.query_block, rows)
            key = _load(self.segments.key, self.key_start, rows.key_block, rows)
            visible.append(_along(query, self.query_dim) == _along(key, self.key_dim))
        if not visible:
            return products
        return jnp.where(functools.reduce(jnp.logical_and, visible), products, _HIDDEN)

    def dropped(self, x: jax.Array) -> jax.Array:
        """Set the elements that dropout does not keep to 0."""
        if self.states is None:
            return x
        index = self.query.astype(jnp.uint32) * jnp.uint32(self.rows.length)
        index = index + self.key.astype(jnp.uint32)
        kept = keep_elements(index, self.states[0], self.states[1], self.rows.rate)
        # Compute the 0 as a difference. If it were a constant, LLVM would round `x` to bfloat16
        # before selecting elements, and could no longer round two elements with one instruction.
        state = self.states[0].astype(jnp.float32)
        return jnp.where(kept, x, state - state)


def _exp(products: jax.Array, shift: jax.Array, rows: Rows) -> jax.Array:
    """Return 2^(log2(e) * scores + shift), where the scores are the scaled `products`."""
    factor = rows.scale * _LOG2_E
    if rows.interpret:
        return jnp.exp2(products * factor + shift)
    # Use inline PTX, because XLA's Triton compiler neither fuses the product and the sum nor
    # flushes results below 2^-126 to 0. Computing these results exactly would take three more
    # instructions per element.
    [result] = triton.elementwise_inline_asm(
        f"{{ .reg .f32 x; fma.rn.f32 x, $1, {_ptx(factor)}, $2; ex2.approx.ftz.f32 $0, x; }}",
        args=[products, jnp.broadcast_to(shift, products.shape)],
        constraints="=f,f,f",
        pack=1,
        result_shape_dtypes=[jax.ShapeDtypeStruct(products.shape, jnp.float32)],
    )
    return result


def _ptx(number: float) -> str:
    """Return a float32 constant in PTX."""
    return f"0f{struct.pack('>f', number).hex().upper()}"


def flash_attention_forward(
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: SegmentRefs | None,
    states: Any,
    attended_ref: Any,
    log_sum_exp_ref: Any,
    *,
    rows: Rows,
) -> None:
    """Attend from one block of queries, with a softmax that is corrected block by block."""
    start = pl.program_id(0) * rows.query_block
    query = _load(query_ref, start, rows.query_block, rows)

    def step(key_start: Any, carry: Any) -> Any:
        attended, highest, total = carry
        pairs = _Pairs(start, key_start, rows, segments, states)
        key = _load(key_ref, key_start, rows.key_block, rows)
        products = pairs.masked(triton.dot(query, key, trans_b=True))
        raised = jnp.maximum(highest, jnp.max(products, axis=1))
        correction = jnp.exp2((highest - raised) * (rows.scale * _LOG2_E))
        probabilities = _exp(products, (raised * (rows.scale * -_LOG2_E))[:, None], rows)
        total = total * correction + jnp.sum(probabilities, axis=1)
        value = _load(value_ref, key_start, rows.key_block, rows)
        weights = pairs.dropped(probabilities).astype(value.dtype)
        attended = attended * correction[:, None] + triton.dot(weights, value)
        return attended, raised, total

    carry = (
        jnp.zeros((rows.query_block, query.shape[1]), jnp.float32),
        jnp.full(rows.query_block, _LOWEST, jnp.float32),
        jnp.zeros(rows.query_block, jnp.float32),
    )
    attended, highest, total = _loop(
        start, rows.query_block, rows.key_block, rows, segments, step, carry
    )
    # The sum is 0 only if the query sees no key.
    blind = total == 0.0
    total = jnp.where(blind, 1.0, total)
    attended = attended * (rows.kept_scale / total)[:, None]
    _store(attended_ref, start, attended, rows)
    log_sum_exp = highest * rows.scale + jnp.log2(total) * (1.0 / _LOG2_E)
    log_sum_exp = jnp.where(blind, 0.0, log_sum_exp)
    _store(log_sum_exp_ref, start, log_sum_exp, rows)


def flash_attention_query_gradient(
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: SegmentRefs | None,
    states: Any,
    attended_ref: Any,
    log_sum_exp_ref: Any,
    cotangent_ref: Any,
    to_query_ref: Any,
    delta_ref: Any,
    *,
    rows: Rows,
) -> None:
    """Compute the gradient of one block of queries, and the `delta` of these queries.

    `delta` is the dot product of a query's attended values and their gradient, which equals the sum
    of its probabilities times their gradients (Dao et al. 2022, "FlashAttention", appendix B.2).
    With dropout, `delta` and the gradients of the scores are computed without the factor 1 / (1 -
    rate). The gradients of queries and keys are multiplied by this factor at the end, along with
    the scale of the scores.
    """
    start = pl.program_id(0) * rows.query_block
    query = _load(query_ref, start, rows.query_block, rows)
    cotangent = _load(cotangent_ref, start, rows.query_block, rows)
    attended = _load(attended_ref, start, rows.query_block, rows)
    delta = jnp.sum(attended.astype(jnp.float32) * cotangent.astype(jnp.float32), axis=1)
    delta = delta * (1.0 - rows.rate)
    _store(delta_ref, start, delta, rows)
    shift = _load(log_sum_exp_ref, start, rows.query_block, rows) * -_LOG2_E

    def step(key_start: Any, to_query: Any) -> Any:
        pairs = _Pairs(start, key_start, rows, segments, states)
        key = _load(key_ref, key_start, rows.key_block, rows)
        value = _load(value_ref, key_start, rows.key_block, rows)
        products = pairs.masked(triton.dot(query, key, trans_b=True))
        probabilities = _exp(products, shift[:, None], rows)
        to_weights = triton.dot(cotangent, value, trans_b=True)
        to_scores = probabilities * (pairs.dropped(to_weights) - delta[:, None])
        return to_query + triton.dot(to_scores.astype(key.dtype), key)

    to_query = jnp.zeros(query.shape, jnp.float32)
    to_query = _loop(start, rows.query_block, rows.key_block, rows, segments, step, to_query)
    _store(to_query_ref, start, to_query * (rows.kept_scale * rows.scale), rows)


def flash_attention_key_value_gradients(
    query_ref: Any,
    key_ref: Any,
    value_ref: Any,
    segments: SegmentRefs | None,
    states: Any,
    log_sum_exp_ref: Any,
    cotangent_ref: Any,
    delta_ref: Any,
    to_key_ref: Any,
    to_value_ref: Any,
    *,
    rows: Rows,
) -> None:
    """Compute the gradients of one block of keys and their values.

    Scores are transposed, [keys, queries], so that the products that sum over queries do not have
    to transpose them.
    """
    start = pl.program_id(0) * rows.key_block
    key = _load(key_ref, start, rows.key_block, rows)
    value = _load(value_ref, start, rows.key_block, rows)

    def step(query_start: Any, carry: Any) -> Any:
        to_key, to_value = carry
        pairs = _Pairs(query_start, start, rows, segments, states, transposed=True)
        query = _load(query_ref, query_start, rows.query_block, rows)
        cotangent = _load(cotangent_ref, query_start, rows.query_block, rows)
        shift = _load(log_sum_exp_ref, query_start, rows.query_block, rows) * -_LOG2_E
        delta = _load(delta_ref, query_start, rows.query_block, rows)
        products = pairs.masked(triton.dot(key, query, trans_b=True))
        probabilities = _exp(products, shift[None, :], rows)
        weights = pairs.dropped(probabilities)
        to_value = to_value + triton.dot(weights.astype(cotangent.dtype), cotangent)
        to_weights = triton.dot(value, cotangent, trans_b=True)
        to_scores = weights * to_weights - probabilities * delta[None, :]
        return to_key + triton.dot(to_scores.astype(query.dtype), query), to_value

    zeros = jnp.zeros(key.shape, jnp.float32)
    to_key, to_value = _loop(
        start, rows.key_block, rows.query_block, rows, segments, step, (zeros, zeros)
    )
    _store(to_key_ref, start, to_key * (rows.kept_scale * rows.scale), rows)
    _store(to_value_ref, start, to_value * rows.kept_scale, rows)
