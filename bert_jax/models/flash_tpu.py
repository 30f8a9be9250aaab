"""Compute attention on TPUs with a kernel that drops probabilities as `keep_mask` does.

Neither pass stores scores, probabilities or a dropout mask (Dao et al. 2022, "FlashAttention"). The
kernel works on arrays [batch, length, num_heads * head_dim], which is the layout that the dense
layers produce. A block has 128 lanes, which hold two heads if `head_dim` is 64. To multiply one
head of a block, the kernel zeroes the other lanes of an operand.

XLA does not estimate the time of a kernel. But libtpu writes the kernel's schedule to files, even
without a TPU, if this variable is set in the environment before JAX starts:

    LIBTPU_INIT_ARGS="--xla_jf_dump_to=FOLDER --xla_jf_dump_llo_text=true
        --xla_jf_dump_llo_pass_label_regex=final_bundles"

In FOLDER/*-flash_attention_forward*-final_bundles.txt, each line is one bundle of instructions,
which takes at least a cycle (1.5 GHz on v5e). The lines from "LB" (loop begin) to "loop exit test"
run once per program. For BERT-base with 32 rows of 512 tokens in bfloat16 on v5e (192 programs),
the forward kernel has 4046 lines and the backward kernel 5513. About 790 lines of each compute the
tables, and only a sixth of the programs run them. This adds up to 1.1 ms per layer (libtpu
0.0.42.1; not measured on a TPU).
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.models.flash_tpu_kernels import backward_kernel, forward_kernel
from bert_jax.models.flash_tpu_tiles import TILE, Plan, Ref
from bert_jax.models.flash_types import Dropout, Segments

# The maximum number of tiles that a program computes, unless the keys of a row need more. The loops
# of a program are unrolled, so this number bounds the size of its code.
_MAX_TILES = 32
# In float32, the keys and values of a block of heads and their gradients must fit into 16 MiB.
_MAX_LENGTH = {32: 1024, 64: 1024, 128: 1024, 256: 512}  # keyed by head_dim
# The segment ids of padding queries and of padding keys. Tokens never have these ids, and the two
# ids differ, so that no padding query sees a padding key.
_QUERY_PADDING, _KEY_PADDING = -(2**31), -(2**31) + 1


def _plan(shape: tuple[int, ...], segments: Segments | None, dropout: Dropout | None) -> Plan:
    length, num_heads, head_dim = shape[1:]
    padded = length + -length % TILE
    lanes = max(TILE, head_dim)
    heads, blocks = lanes // head_dim, math.ceil(num_heads * head_dim / lanes)
    column = heads * (padded // TILE)  # the number of tiles in a block for 128 queries
    return Plan(
        length=length,
        padded=padded,
        head_dim=head_dim,
        lanes=lanes,
        blocks=blocks,
        group=_largest_part(blocks, 1, _MAX_TILES // (column * (padded // TILE))),
        queries=_largest_part(padded, TILE, TILE * (_MAX_TILES // column)),
        rate=0.0 if dropout is None else dropout.rate,
        masked=segments is not None or padded != length,
    )


def _largest_part(whole: int, unit: int, most: int) -> int:
    """Return the largest divisor of `whole` that is a multiple of `unit` and at most `most`.

    If `most` is less than `unit`, the result is `unit`.
    """
    return max(n for n in range(unit, max(unit, most) + 1, unit) if whole % n == 0)


SCALES_SCORES = False  # see `FlashKernels`


def supported(length: int, head_dim: int, window: int | None) -> str | None:
    """Return the reason why these sizes are not supported; None if they are. See `FlashKernels`."""
    if window is not None:
        return "needs attention to the whole row, without a window"
    if head_dim not in _MAX_LENGTH:
        *most, last = _MAX_LENGTH
        return f"needs heads of {', '.join(map(str, most))} or {last} dims"
    if length > _MAX_LENGTH[head_dim]:
        return f"needs rows of at most {_MAX_LENGTH[head_dim]} tokens"
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
    plan = _plan(query.shape, segments, dropout)
    batch, length, num_heads, head_dim = query.shape
    assert supported(length, head_dim, window) is None
    operands = [
        *_small(plan, batch, segments, dropout),
        *(_widen(plan, x) for x in (query, key, value)),
    ]
    cost = _cost(query, products=2, arrays=4)
    attended, log_sum_exp = _call_forward(plan, cost, interpret, *operands)
    log_sum_exp = log_sum_exp.reshape(batch, -1, plan.padded)
    return _narrow(attended, query.shape), log_sum_exp[:, :num_heads, :length]


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
    """Return the gradients; see `FlashKernels.backward`."""
    plan = _plan(query.shape, segments, dropout)
    batch, length, num_heads, head_dim = query.shape
    assert supported(length, head_dim, window) is None
    after = (0, plan.blocks * plan.heads - num_heads), (0, plan.padded - length)
    sums = jnp.pad(log_sum_exp, ((0, 0), *after))
    operands = [
        *_small(plan, batch, segments, dropout),
        *(_widen(plan, x) for x in (query, key, value, attended, cotangent)),
        sums.reshape(batch, plan.blocks, plan.heads, plan.padded),
    ]
    cost = _cost(query, products=5, arrays=8)
    gradients = _call_backward(plan, cost, interpret, *operands)
    to_query, to_key, to_value = (_narrow(x, query.shape) for x in gradients)
    return to_query, to_key, to_value


# All blocks of heads in a row use the same tables, so they must run in order on one core.
_PARAMS = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary", "arbitrary"))

# The layers of a model call the same kernels. Thanks to `jax.jit`, JAX traces them only once.
_static = functools.partial(jax.jit, static_argnums=(0, 1, 2))


@_static
def _call_forward(
    plan: Plan, cost: pl.CostEstimate, interpret: bool, *operands: jax.Array
) -> list[jax.Array]:
    """Run `forward_kernel` on arrays [batch, length, lanes]."""
    *_, value = operands
    specs, batch = _Specs(plan), value.shape[0]
    sums = jax.ShapeDtypeStruct((batch, plan.blocks, plan.heads, plan.padded), jnp.float32)
    return pl.pallas_call(
        functools.partial(forward_kernel, plan),
        grid=(batch, plan.blocks // plan.group, plan.parts),
        in_specs=[*specs.small, specs.tile, specs.row, specs.row],
        out_specs=[specs.tile, specs.sums],
        out_shape=[jax.ShapeDtypeStruct(value.shape, value.dtype), sums],
        scratch_shapes=_tables(plan),
        compiler_params=_PARAMS,
        cost_estimate=cost,
        interpret=interpret,
        name="flash_attention_forward",
    )(*operands)


@_static
def _call_backward(
    plan: Plan, cost: pl.CostEstimate, interpret: bool, *operands: jax.Array
) -> list[jax.Array]:
    """Run `backward_kernel` on arrays [batch, length, lanes]."""
    *_, cotangent, _ = operands
    specs = _Specs(plan)
    gradient = jax.ShapeDtypeStruct(cotangent.shape, cotangent.dtype)
    totals = [pltpu.VMEM((plan.lanes, plan.padded), jnp.float32)] * 2 if plan.parts > 1 else []
    tile, row = specs.tile, specs.row
    return pl.pallas_call(
        functools.partial(backward_kernel, plan),
        grid=(cotangent.shape[0], plan.blocks // plan.group, plan.parts),
        in_specs=[*specs.small, tile, row, row, tile, tile, specs.sums],
        out_specs=[tile, row, row],
        out_shape=[gradient, gradient, gradient],
        scratch_shapes=[*totals, *_tables(plan)],
        compiler_params=_PARAMS,
        cost_estimate=cost,
        interpret=interpret,
        name="flash_attention_backward",
    )(*operands)


def _tables(plan: Plan) -> list[Ref]:
    """Return the scratch buffers for the tables of `Shared`."""
    shape = (plan.padded, plan.queries)
    counters = [pltpu.VMEM(shape, jnp.uint32)] if plan.rate else []
    return [*counters, *([pltpu.VMEM(shape, jnp.float32)] if plan.masked else [])]


class _Specs:
    """The part of each operand that a program uses.

    There is one program for every row, group of blocks of heads, and tile.
    """

    def __init__(self, plan: Plan):
        width = plan.group * plan.lanes
        self.tile = pl.BlockSpec((1, plan.queries, width), lambda i, j, t: (i, t, j))
        self.row = pl.BlockSpec((1, plan.padded, width), lambda i, j, t: (i, 0, j))
        sums = (1, plan.group, plan.heads, plan.queries)
        self.sums = pl.BlockSpec(sums, lambda i, j, t: (i, j, 0, t))
        self.small = []
        if plan.rate:
            states = (1, 1, 2 * plan.blocks * plan.heads)
            self.small += [pl.BlockSpec(states, lambda i, j, t: (i, 0, 0), memory_space=pltpu.SMEM)]
        if plan.masked:
            self.small += [
                pl.BlockSpec((1, 1, plan.queries), lambda i, j, t: (i, 0, t)),
                pl.BlockSpec((1, 1, plan.padded), lambda i, j, t: (i, 0, 0)),
            ]


def _small(
    plan: Plan, batch: int, segments: Segments | None, dropout: Dropout | None
) -> list[jax.Array]:
    """Return the hash states and the segment ids, if any, in the shapes of `_Specs.small`."""
    small = []
    if plan.rate:
        assert dropout is not None
        heads = plan.blocks * plan.heads
        states = dropout.states
        states = jnp.pad(states, ((0, 0), (0, heads - states.shape[1]), (0, 0)))
        small.append(states.reshape(batch, 1, 2 * heads))
    if plan.masked:
        same = jnp.zeros((batch, plan.length), jnp.int32)
        for ids, padding in zip(
            segments or (same, same), (_QUERY_PADDING, _KEY_PADDING), strict=True
        ):
            after = (0, plan.padded - plan.length)
            small.append(jnp.pad(ids, ((0, 0), after), constant_values=padding)[:, None])
    return small


def _widen(plan: Plan, x: jax.Array) -> jax.Array:
    """Reshape [batch, length, num_heads, head_dim] to [batch, length, lanes], and pad it."""
    heads = plan.blocks * plan.heads - x.shape[2]
    x = jnp.pad(x, ((0, 0), (0, plan.padded - plan.length), (0, heads), (0, 0)))
    return x.reshape(*x.shape[:2], -1)


def _narrow(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Undo `_widen`."""
    _, length, num_heads, head_dim = shape
    return x.reshape(*x.shape[:2], -1, head_dim)[:, :length, :num_heads]


def _cost(query: jax.Array, products: int, arrays: int) -> pl.CostEstimate:
    """Return the cost of a kernel, without padding.

    Args:
      query: the query.
      products: the number of matrix products with an operand or result as large as the scores.
      arrays: the number of arrays as large as `query` that the kernel reads or writes.
    """
    batch, length, num_heads, head_dim = query.shape
    scores = batch * num_heads * length * length
    return pl.CostEstimate(
        flops=2 * products * scores * head_dim,
        bytes_accessed=arrays * query.size * query.dtype.itemsize + 4 * batch * num_heads * length,
        transcendentals=scores,
    )
