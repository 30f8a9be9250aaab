"""Compute fused attention on NVIDIA GPUs, without storing scores, probabilities or masks.

This module calls the kernels in `flash_gpu_kernels`, which read and write arrays [batch, length,
num_heads, head_dim] without transposing them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, assert_never

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.models.flash_gpu_blocks import (
    FORWARD,
    KEY_VALUE_GRADIENTS,
    QUERY_GRADIENT,
    Choices,
    Rows,
    choose,
    shared_blocks,
    visited_blocks,
)
from bert_jax.models.flash_gpu_kernels import (
    SegmentRefs,
    flash_attention_forward,
    flash_attention_key_value_gradients,
    flash_attention_query_gradient,
)
from bert_jax.models.flash_types import Dropout, Segments

# In Triton, the number of columns of an array is a power of 2, and matrix products need at least 16
# columns. The gradients of larger heads would not fit into a GPU's registers.
_HEAD_DIMS = (16, 32, 64, 128)
# The index of an element in a dropout mask must fit in 32 bits.
_MAX_LENGTH = 2**16 - 1

_BlocksOf = Literal["query", "key"]  # whether each program has a block of queries or of keys

SCALES_SCORES = True  # see `FlashKernels`


def supported(length: int, head_dim: int, window: int | None) -> str | None:
    """Return the reason why these sizes are not supported; None if they are. See `FlashKernels`."""
    del window  # any window is supported
    if head_dim not in _HEAD_DIMS:
        return f"needs heads of size {', '.join(map(str, _HEAD_DIMS[:-1]))} or {_HEAD_DIMS[-1]}"
    if length > _MAX_LENGTH:
        return f"needs rows of at most {_MAX_LENGTH:,} tokens"
    return None


def forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: Segments | None,
    dropout: Dropout | None,
    window: int | None,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Return the attended values and the log-sum-exp; see `FlashKernels.forward`."""
    batch, length, num_heads, _ = query.shape
    log_sum_exp = jax.ShapeDtypeStruct((batch, num_heads, length), jnp.float32)
    call = _Call(query, segments, dropout, window, FORWARD, "query", interpret)
    inputs = query, key, value
    return call(flash_attention_forward, inputs, (), (query, log_sum_exp), products=2)


def backward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: Segments | None,
    dropout: Dropout | None,
    window: int | None,
    attended: jax.Array,
    log_sum_exp: jax.Array,
    cotangent: jax.Array,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients; see `FlashKernels.backward`.

    Two kernels compute the gradients, and each recomputes the probabilities. The result is
    deterministic, whereas a single kernel would have to sum the gradients of the queries with
    atomic additions, whose order varies.
    """
    call = _Call(query, segments, dropout, window, QUERY_GRADIENT, "query", interpret)
    to_query, delta = call(
        flash_attention_query_gradient,
        (query, key, value),
        (attended, log_sum_exp, cotangent),
        (query, log_sum_exp),
        products=3,
    )
    call = _Call(query, segments, dropout, window, KEY_VALUE_GRADIENTS, "key", interpret)
    to_key, to_value = call(
        flash_attention_key_value_gradients,
        (query, key, value),
        (log_sum_exp, cotangent, delta),
        (key, value),
        products=4,
    )
    return to_query, to_key, to_value


class _Call:
    """A kernel call for all rows and heads.

    Attributes:
      rows: the properties of the rows that the kernel is compiled for.
      own: the number of tokens in the block that a program owns.
      other: the number of tokens in each block that the program visits.
    """

    def __init__(
        self,
        query: jax.Array,
        segments: Segments | None,
        dropout: Dropout | None,
        window: int | None,
        tiles: Choices,
        blocks_of: _BlocksOf,
        interpret: bool,
    ) -> None:
        self._shape, self._interpret = query.shape, interpret
        self._tiles = choose(tiles, query, window)
        self.rows = Rows(
            length=query.shape[1],
            scale=query.shape[3] ** -0.5,
            reach=None if window is None else window // 2,
            rate=0.0 if dropout is None else dropout.rate,
            query_block=self._tiles.queries,
            key_block=self._tiles.keys,
            interpret=interpret,
        )
        match blocks_of:
            case "query":
                self.own, self.other = self._tiles.queries, self._tiles.keys
            case "key":
                self.own, self.other = self._tiles.keys, self._tiles.queries
            case _:
                assert_never(blocks_of)
        self._states = None if dropout is None else dropout.states
        self._segments = None
        if segments is not None:
            own, other = segments if blocks_of == "query" else segments[::-1]
            shared = shared_blocks(own, self.own, other, self.other)
            self._segments = SegmentRefs(*segments, shared)

    def __call__(
        self,
        kernel: Callable[..., None],
        inputs: tuple[jax.Array, jax.Array, jax.Array],
        others: tuple[jax.Array, ...],
        results: tuple[Any, Any],
        products: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Run the kernel.

        Args:
          kernel: one of `flash_gpu_kernels`.
          inputs: the query, the key and the value.
          others: the kernel's other operands, after the segments and the states.
          results: arrays with the shapes and dtypes of the kernel's results.
          products: the number of matrix products that the kernel computes per pair of blocks.
        """
        batch, length, num_heads, head_dim = self._shape
        heads = pl.BlockSpec((None, length, None, head_dim), lambda i, h, b: (b, 0, h, 0))
        numbers = pl.BlockSpec((None, None, length), lambda i, h, b: (b, h, 0))
        row = pl.BlockSpec((None, length), lambda i, h, b: (b, 0))
        blocks = pl.BlockSpec((None, None, 2), lambda i, h, b: (b, i, 0))
        states = pl.BlockSpec((None, None, 2), lambda i, h, b: (b, h, 0))
        segments = SegmentRefs(row, row, blocks)

        def specs(arrays: tuple[Any, ...]) -> list[pl.BlockSpec]:
            return [heads if len(x.shape) == 4 else numbers for x in arrays]

        operands = (*inputs, self._segments, self._states, *others)
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results]
        first, second = pl.pallas_call(
            functools.partial(kernel, rows=self.rows),
            grid=(-(-length // self.own), num_heads, batch),
            in_specs=[
                *specs(inputs),
                None if self._segments is None else segments,
                None if self._states is None else states,
                *specs(others),
            ],
            out_specs=specs(results),
            out_shape=shapes,
            compiler_params=triton.CompilerParams(
                num_warps=self._tiles.warps, num_stages=self._tiles.stages
            ),
            cost_estimate=self._cost([*jax.tree.leaves(operands), *shapes], products),
            interpret=self._interpret,
            name=kernel.__name__,
        )(*operands)
        return first, second

    def _cost(self, arrays: list[Any], products: int) -> pl.CostEstimate:
        """Return the cost of the visited blocks, as if all tokens were in the same segment.

        Programs that run at the same time visit the same blocks of other tokens, so they find them
        in the L2 cache. Each array is therefore counted as read or written once.
        """
        batch, length, num_heads, head_dim = self._shape
        visited = 0
        for start in range(0, length, self.own):
            first, end = visited_blocks(start, self.own, self.other, self.rows)
            visited += end - first
        pairs = batch * num_heads * visited * self.own * self.other
        return pl.CostEstimate(
            flops=products * 2 * pairs * head_dim,
            transcendentals=pairs,
            bytes_accessed=sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays),
        )
