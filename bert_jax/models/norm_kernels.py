"""Compute dropout, a residual connection and a norm in one Triton kernel, and the gradients in one.

Both kernels are limited by memory bandwidth, so they read and write every array only once. The
masks of dropout are computed from their hash states, and the means and variances from sums that are
held in registers. A block of threads processes a few whole vectors, each as a number of parts whose
size is a power of two, which is all that Triton supports.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.models.dropout import keep_elements

_WARP = 32  # threads
_PER_THREAD = 32  # elements of each array that a thread holds in registers
_MAX_BLOCKS = 512  # in the backward pass; each writes one partial sum of every parameter's gradient


class Settings(NamedTuple):
    """The constants that a kernel is compiled with.

    Attributes:
      rate: the dropout rate.
      epsilon: the constant added to the mean square.
      centered: whether the mean of each vector is subtracted (LayerNorm) or not (RMSNorm).
      interpret: whether to run in Pallas's interpreter, which works on any device.
    """

    rate: float
    epsilon: float
    centered: bool
    interpret: bool = False


# The statistics of each vector, float32 [batch, length]: the mean (None for RMSNorm), and
# 1 / sqrt(mean square + epsilon), where the mean is subtracted first.
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
    total, normed, (mean, inverse) = pl.pallas_call(
        functools.partial(_forward_kernel, settings=settings, tokens=tokens, length=length),
        out_shape=(like, like, (each if centered else None, each)),
        grid=(pl.cdiv(tokens, rows),),
        in_specs=(matrix, matrix, *map(_whole, operands[2:])),
        out_specs=(matrix, matrix, (vector if centered else None, vector)),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
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
      to_total: the gradient that reaches `total` from elsewhere, like it; None if there is none.
      to_normed: the gradient of the norm, like `total`.
      settings: see `forward`.
      has_bias: whether the norm has a bias.

    Returns:
      The gradients of `x` and of `update`, like them, and partial sums of the gradients of the
      scale and of the bias (if there is one), float32 [blocks, parameters, dim].
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
    to_x, to_update, sums = pl.pallas_call(
        functools.partial(
            _backward_kernel, settings=settings, tokens=tokens, length=length, rows=rows
        ),
        out_shape=(like, like, _shape((blocks, parameters, dim), jnp.float32)),
        grid=(blocks,),
        in_specs=(
            *(matrix, None if to_total is None else matrix, matrix),
            *(None if mean is None else vector, vector, *map(_whole, operands[5:])),
        ),
        out_specs=(matrix, matrix, pl.BlockSpec((None, parameters, dim), lambda i: (i, 0, 0))),
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=settings.interpret,
        name="dropout_add_norm_backward",
    )(*operands)
    return to_x.reshape(total.shape), to_update.reshape(total.shape), sums


def _part(dim: int) -> int:
    """Return the largest power of two that divides `dim`."""
    return dim & -dim


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


def _parts(dim: int) -> list[Any]:
    size = _part(dim)
    return [pl.ds(start, size) for start in range(0, dim, size)]


def _parameter(ref: Any, part: Any, rows: int) -> jax.Array:
    """Return a part of a parameter, repeated for each of `rows` vectors.

    Every thread reads the elements that it needs. If a vector was read first and then repeated, the
    threads would exchange its elements through shared memory, and wait for each other.
    """
    shape = (rows, part.size)
    column = part.start + jax.lax.broadcasted_iota(jnp.int32, shape, 1)
    return triton.load(ref.at[column])


def _read(ref: Any, rows: Any, part: Any, valid: jax.Array) -> jax.Array:
    """Read a part of some vectors in float32; zeros for vectors past the end of the array."""
    mask = jnp.broadcast_to(valid[:, None], (len(valid), part.size))
    return triton.load(ref.at[rows, part], mask=mask, other=0.0).astype(jnp.float32)


def _write(ref: Any, rows: Any, part: Any, valid: jax.Array, value: jax.Array) -> None:
    mask = jnp.broadcast_to(valid[:, None], value.shape)
    triton.store(ref.at[rows, part], value.astype(ref.dtype), mask=mask)


class _Dropout:
    """Applies dropout to parts of the vectors of some tokens.

    Args:
      states: a reference to the hash states of all rows; None without dropout.
      token: the tokens' indices, int32.
      valid: whether each token exists.
      length: the number of tokens in a row.
      dim: the size of a vector.
      rate: the dropout rate.
    """

    def __init__(
        self, states: Any, token: jax.Array, valid: jax.Array, length: int, dim: int, rate: float
    ):
        self.rate, self.states = rate, None
        if states is None:
            return
        size = jnp.int32(length)
        row, position = jax.lax.div(token, size), jax.lax.rem(token, size)
        self.start = position.astype(jnp.uint32) * jnp.uint32(dim)
        self.states = [triton.load(states.at[row, i], mask=valid, other=0) for i in (0, 1)]

    def __call__(self, x: jax.Array, part: Any, dtype: jnp.dtype) -> jax.Array:
        """Apply dropout to float32 `x`, which holds numbers of `dtype`, as `dropout` does."""
        if self.states is None:
            return x
        column = jax.lax.broadcasted_iota(jnp.uint32, x.shape, 1) + jnp.uint32(part.start)
        first, second = (state[:, None] for state in self.states)
        keep = keep_elements(self.start[:, None] + column, first, second, self.rate)
        factor = jnp.asarray(1.0 / (1.0 - self.rate), dtype).astype(jnp.float32)
        return jnp.where(keep, _rounded(x * factor, dtype), 0.0)


def _rounded(x: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Round float32 numbers to `dtype`, but return them in float32."""
    return x.astype(dtype).astype(jnp.float32)


def _sum(values: list[jax.Array]) -> jax.Array:
    """Sum each vector, given its parts."""
    return jnp.sum(functools.reduce(jnp.add, values), axis=1)


def _forward_kernel(
    x_ref: Any,
    update_ref: Any,
    states: Any,
    scale_ref: Any,
    bias_ref: Any,
    total_ref: Any,
    normed_ref: Any,
    statistics: Any,
    *,
    settings: Settings,
    tokens: int,
    length: int,
) -> None:
    mean_ref, inverse_ref = statistics
    rows, dim = x_ref.shape
    dtype, every = total_ref.dtype, slice(None)
    token = pl.program_id(0) * rows + jnp.arange(rows, dtype=jnp.int32)
    valid = token < tokens
    dropout = _Dropout(states, token, valid, length, dim, settings.rate)
    totals = []
    for part in _parts(dim):
        update = dropout(_read(update_ref, every, part, valid), part, dtype)
        total = _rounded(_read(x_ref, every, part, valid) + update, dtype)
        _write(total_ref, every, part, valid, total)
        totals.append(total)
    if settings.centered:
        mean = _sum(totals) / dim
        triton.store(mean_ref.at[every], mean, mask=valid)
        totals = [total - mean[:, None] for total in totals]
    square = _sum([total * total for total in totals]) / dim
    inverse = jax.lax.rsqrt(square + settings.epsilon)
    triton.store(inverse_ref.at[every], inverse, mask=valid)
    for part, total in zip(_parts(dim), totals, strict=True):
        normed = total * (inverse[:, None] * _parameter(scale_ref, part, rows))
        if bias_ref is not None:
            normed = normed + _parameter(bias_ref, part, rows)
        _write(normed_ref, every, part, valid, normed)


def _backward_kernel(
    total_ref: Any,
    to_total_ref: Any,
    to_normed_ref: Any,
    mean_ref: Any,
    inverse_ref: Any,
    states: Any,
    scale_ref: Any,
    to_x_ref: Any,
    to_update_ref: Any,
    sums_ref: Any,
    *,
    settings: Settings,
    tokens: int,
    length: int,
    rows: int,
) -> None:
    per_block, dim = total_ref.shape
    dtype, num_parameters = to_x_ref.dtype, sums_ref.shape[0]
    parts, first = _parts(dim), pl.program_id(0) * per_block

    def some_rows(number: jax.Array, sums: tuple[Any, ...]) -> tuple[Any, ...]:
        start = pl.multiple_of(number * rows, rows)
        here = pl.ds(start, rows)
        token = first + start + jnp.arange(rows, dtype=jnp.int32)
        valid = token < tokens
        dropout = _Dropout(states, token, valid, length, dim, settings.rate)
        inverse = triton.load(inverse_ref.at[here], mask=valid, other=0.0)[:, None]
        units = [_read(total_ref, here, part, valid) for part in parts]
        if settings.centered:
            mean = triton.load(mean_ref.at[here], mask=valid, other=0.0)[:, None]
            units = [unit - mean for unit in units]
        units = [unit * inverse for unit in units]
        wide = [_read(to_normed_ref, here, part, valid) for part in parts]
        gradients = [[g * unit for g, unit in zip(wide, units, strict=True)], wide]
        sums = jax.tree.map(jnp.add, sums, tuple(map(tuple, gradients[:num_parameters])))
        to_units = [
            g * _parameter(scale_ref, part, rows) for g, part in zip(wide, parts, strict=True)
        ]
        along = _sum([g * unit for g, unit in zip(to_units, units, strict=True)]) / dim
        slope = _sum(to_units)[:, None] / dim if settings.centered else 0.0
        for part, to_unit, unit in zip(parts, to_units, units, strict=True):
            to_x = (to_unit - unit * along[:, None] - slope) * inverse
            if to_total_ref is not None:
                to_x = _rounded(to_x, dtype) + _read(to_total_ref, here, part, valid)
            to_x = _rounded(to_x, dtype)
            _write(to_x_ref, here, part, valid, to_x)
            _write(to_update_ref, here, part, valid, dropout(to_x, part, dtype))
        return sums

    zeros = tuple(jnp.zeros((rows, part.size), jnp.float32) for part in parts)
    sums = jax.lax.fori_loop(0, per_block // rows, some_rows, (zeros,) * num_parameters)
    for number, parameter in enumerate(sums):
        for part, total in zip(parts, parameter, strict=True):
            sums_ref[number, part] = jnp.sum(total, axis=0)
