"""Compute dropout, a residual connection and a norm in one kernel, and their gradients in another.

Both kernels are limited by memory bandwidth, so they read or write every array only once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.models.norm_kernel_bodies import Settings, backward_kernel, forward_kernel

_WARP = 32  # threads
_PER_THREAD = 32  # elements of each array that a thread holds in registers
# The maximum number of blocks in the backward pass. Each block writes one partial sum of every
# parameter's gradient.
_MAX_BLOCKS = 512


# The statistics of each vector, float32 [batch, length]: the mean (None for RMSNorm), and
# 1 / sqrt(mean square + epsilon) after the mean is subtracted.
Statistics = tuple[jax.Array | None, jax.Array]


def forward(
    x: jax.Array,
    update: jax.Array,
    states: jax.Array | None,
    scale: jax.Array,
    bias: jax.Array | None,
    settings: Settings,
) -> tuple[jax.Array, jax.Array, Statistics]:
    """Return x + dropout(update), its norm and its statistics.

    Args:
      x: [batch, length, dim].
      update: same shape and dtype as `x`.
      states: the hash states of each row's mask, uint32 [batch, 2] (see `dropout.matrix_states`);
        None without dropout.
      scale: float32 [dim].
      bias: float32 [dim]; None adds nothing.
      settings: the constants to compile with.
    """
    batch, length, dim = x.shape
    tokens, (rows, warps) = batch * length, _block(dim)
    matrix, vector = pl.BlockSpec((rows, dim), _at_row), pl.BlockSpec((rows,), _at)
    like, each = _shape((tokens, dim), x.dtype), _shape((tokens,), jnp.float32)
    centered = settings.centered
    operands = (_flat(x), _flat(update), states, scale, bias)
    results = (like, like, (each if centered else None, each))
    total, normed, (mean, inverse) = pl.pallas_call(
        functools.partial(forward_kernel, settings=settings, tokens=tokens, length=length),
        out_shape=results,
        grid=(pl.cdiv(tokens, rows),),
        in_specs=(matrix, matrix, *map(_whole, operands[2:])),
        out_specs=(matrix, matrix, (vector if centered else None, vector)),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        cost_estimate=_cost(operands, results),
        interpret=settings.interpret,
        name="dropout_add_norm",
    )(*operands)
    statistics = (mean.reshape(batch, length) if centered else None, inverse.reshape(batch, length))
    return total.reshape(x.shape), normed.reshape(x.shape), statistics


def backward(
    total: jax.Array,
    states: jax.Array | None,
    scale: jax.Array,
    mean: jax.Array | None,
    inverse: jax.Array,
    to_total: jax.Array | None,
    to_normed: jax.Array,
    settings: Settings,
    has_bias: bool,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the gradients of the arguments of `forward`.

    Args:
      total: x + dropout(update), as returned by `forward`.
      states: see `forward`.
      scale: see `forward`.
      mean: the statistic that `forward` returned.
      inverse: the statistic that `forward` returned.
      to_total: the gradient of `total` from its other uses, shaped like `total`; None if there are
        no other uses.
      to_normed: the gradient of the norm, shaped like `total`.
      settings: see `forward`.
      has_bias: whether the norm has a bias.

    Returns:
      The gradients of `x` and `update`, with the same shapes and dtypes, and partial sums of the
      gradients of the scale and of the bias (if there is one), float32 [blocks, parameters, dim].
    """
    batch, length, dim = total.shape
    tokens, (rows, warps) = batch * length, _block(dim)
    per_block = max(rows, pl.next_power_of_2(pl.cdiv(tokens, _MAX_BLOCKS)))
    blocks, parameters = pl.cdiv(tokens, per_block), 1 + has_bias
    matrix, vector = pl.BlockSpec((per_block, dim), _at_row), pl.BlockSpec((per_block,), _at)
    like = _shape((tokens, dim), total.dtype)
    operands = (
        *(_flat(total), None if to_total is None else _flat(to_total), _flat(to_normed)),
        *(None if mean is None else mean.ravel(), inverse.ravel(), states, scale),
    )
    results = (like, like, _shape((blocks, parameters, dim), jnp.float32))
    to_x, to_update, sums = pl.pallas_call(
        functools.partial(
            backward_kernel, settings=settings, tokens=tokens, length=length, rows=rows
        ),
        out_shape=results,
        grid=(blocks,),
        in_specs=(
            *(matrix, None if to_total is None else matrix, matrix),
            *(None if mean is None else vector, vector, *map(_whole, operands[5:])),
        ),
        out_specs=(matrix, matrix, pl.BlockSpec((None, parameters, dim), lambda i: (i, 0, 0))),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        cost_estimate=_cost(operands, results),
        interpret=settings.interpret,
        name="dropout_add_norm_backward",
    )(*operands)
    return to_x.reshape(total.shape), to_update.reshape(total.shape), sums


def _block(dim: int) -> tuple[int, int]:
    """Return how many vectors a block of threads processes at once, and its number of warps."""
    warps = 4 if dim <= 1024 else 8
    fitting = warps * _WARP * _PER_THREAD // dim
    return min(16, 1 << (fitting.bit_length() - 1)), warps


def _at(block: jax.Array) -> tuple[jax.Array]:
    return (block,)


def _at_row(block: jax.Array) -> tuple[jax.Array, int]:
    return block, 0


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1])


def _shape(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _whole(operand: jax.Array | None) -> pl.BlockSpec | None:
    """Return a spec that gives every block the whole operand."""
    if operand is None:
        return None
    return pl.BlockSpec(operand.shape, lambda _: (0,) * operand.ndim)


def _cost(operands: Any, results: Any) -> pl.CostEstimate:
    """Return the cost of a kernel that reads or writes every array once, without matmuls."""
    arrays = jax.tree.leaves((operands, results))
    size = sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays)
    return pl.CostEstimate(flops=0, transcendentals=0, bytes_accessed=size)
