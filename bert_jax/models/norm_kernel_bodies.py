"""Define the Triton kernels that `norm_kernels` calls.

A block of threads processes a few whole vectors at once. Each vector is divided into parts, because
Triton supports only arrays whose size is a power of two. The dropout mask is computed from its hash
states, and sums are held in registers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from bert_jax.models.dropout import keep_elements


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


def _parts(dim: int) -> list[Any]:
    """Divide a vector into parts whose size is the largest power of two that divides `dim`."""
    size = dim & -dim
    return [pl.ds(start, size) for start in range(0, dim, size)]


def _parameter(ref: Any, part: Any, rows: int) -> jax.Array:
    """Return a part of a parameter, repeated for each of `rows` vectors.

    Every thread reads the elements that it needs. If the vector were read once and then repeated,
    the threads would have to exchange its elements through shared memory and wait for each other.
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
    """Dropout for a block of tokens and a part of their vectors.

    Args:
      states: a reference to the hash states of all rows; None without dropout.
      token: the tokens' indices, int32.
      valid: whether each index belongs to an existing token, since the last block may extend past
        the end.
      length: the number of tokens per row.
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
        """Apply dropout to `x` in the same way as `dropout` does to an array of `dtype`.

        `x` contains float32 numbers that `dtype` can represent.
        """
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


def forward_kernel(
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
    """Compute the sums, norms and statistics of a block of vectors.

    Args:
      x_ref: a block [vectors, dim] of the vectors of all tokens.
      update_ref: like `x_ref`.
      states: the hash states of all rows, [batch, 2]; None without dropout.
      scale_ref: [dim].
      bias_ref: [dim]; None adds nothing.
      total_ref: receives the sum, like `x_ref`.
      normed_ref: receives the norm, like `x_ref`.
      statistics: receive the mean (None for RMSNorm) and 1 / sqrt(mean square + epsilon), both
        [vectors].
      settings: the constants to compile with.
      tokens: the number of all tokens; the last block may extend past it.
      length: the number of tokens per row.
    """
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


def backward_kernel(
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
    """Compute the gradients of a block of vectors, and sum the gradients of the parameters.

    Args:
      total_ref: a block [vectors, dim] of the sums of all tokens.
      to_total_ref: the gradient of the sums from their other uses, shaped like the sums; None if
        there are no other uses.
      to_normed_ref: the gradient of the norm, shaped like the sums.
      mean_ref: the means [vectors]; None for RMSNorm.
      inverse_ref: 1 / sqrt(mean square + epsilon) of each vector, [vectors].
      states: see `forward_kernel`.
      scale_ref: [dim].
      to_x_ref: receives the gradient of `x`, shaped like the sums.
      to_update_ref: receives the gradient of the update, shaped like the sums.
      sums_ref: receives the block's part of the gradients of the parameters, [parameters, dim].
      settings: the constants to compile with.
      tokens: the number of all tokens; the last block may extend past it.
      length: the number of tokens per row.
      rows: the number of vectors to process at a time.
    """
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
