"""Divide the work of a kernel of `flash_tpu` into tiles, and share tables among the heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.models.dropout import hash_counters, keep_counters

TILE = 128  # the number of keys and of queries in a tile
# The score of a key that a query does not see. It is so low that adding another score leaves it
# unchanged and that its exponential is zero. Unlike -inf, it does not give NaN when subtracted from
# itself.
UNSEEN = -1e30

Ref = Any  # a reference to memory, for which Pallas has no type


class Plan(NamedTuple):
    """The sizes that determine how a call is split into programs, known at compile time.

    Attributes:
      length: the number of tokens per row.
      padded: `length`, rounded up to whole tiles.
      head_dim: the size of a head.
      lanes: the number of lanes in a block of heads.
      blocks: the number of blocks of heads.
      group: the number of blocks of heads that a program computes.
      queries: the number of queries that a program processes.
      rate: the dropout rate.
      masked: whether there are segments.
    """

    length: int
    padded: int
    head_dim: int
    lanes: int
    blocks: int
    group: int
    queries: int
    rate: float
    masked: bool

    @property
    def heads(self) -> int:
        """Return the number of heads in a block."""
        return self.lanes // self.head_dim

    @property
    def parts(self) -> int:
        """Return the number of programs over which the queries of a row are split."""
        return self.padded // self.queries

    def lanes_of(self, block: int) -> slice:
        """Return the lanes of a block in the arrays of a program."""
        return slice(block * self.lanes, (block + 1) * self.lanes)

    def rows_of(self, head: int) -> slice:
        """Return the rows of a head in a transposed block."""
        return slice(head * self.head_dim, (head + 1) * self.head_dim)


class Tile(NamedTuple):
    """Some keys and queries of a head.

    Attributes:
      block: the index, among the program's blocks of heads, of the block that contains the head.
      head: the index of the head in its block.
      keys: the positions of the keys.
      queries: the positions of the queries in the program.
    """

    block: int
    head: int
    keys: slice
    queries: slice


def tiles_of(tokens: int) -> list[slice]:
    """Divide a number of tokens into tiles."""
    return [slice(start, start + TILE) for start in range(0, tokens, TILE)]


def interleave(
    tiles: Sequence[Tile], stages: Sequence[Callable[[Tile, Any], Any]], delays: Sequence[int]
) -> None:
    """Pass each tile through all stages, so that different stages work on different tiles.

    The compiler keeps instructions close to their place in the program. If each tile passed through
    all stages before the next tile started, the matrix units and the vector units would therefore
    take turns.

    Args:
      tiles: the tiles in the order in which the first stage processes them.
      stages: functions of a tile and the result of the previous stage (None for the first stage).
      delays: the number of tiles by which each stage lags behind the first, in ascending order.
    """
    results: dict[int, Any] = {}
    for step in range(len(tiles) + delays[-1]):
        for stage, delay in reversed(list(zip(stages, delays, strict=True))):
            number = step - delay
            if 0 <= number < len(tiles):
                results[number] = stage(tiles[number], results.pop(number, None))


class Blocks(dict[int, jax.Array]):
    """One array per block of heads, computed from the block's lanes when it is first needed."""

    def __init__(self, plan: Plan, compute: Callable[[slice], jax.Array]):
        super().__init__()
        self.plan, self.compute = plan, compute

    def __missing__(self, block: int) -> jax.Array:
        self[block] = self.compute(self.plan.lanes_of(block))
        return self[block]


class Sums:
    """Sums of products [head_dim, tokens], one for each head and each tile of tokens."""

    def __init__(
        self, plan: Plan, count: int, write: Callable[[int, slice, list[jax.Array]], None]
    ):
        """Start with no products.

        Args:
          plan: see `Plan`.
          count: the number of products in a sum.
          write: a function to call with a block, its tokens and the sums of its heads, once these
            are complete.
        """
        self.heads, self.count, self.write = plan.heads, count, write
        self.sums: dict[tuple[int, int], dict[int, jax.Array]] = {}
        self.added: dict[tuple[int, int], int] = {}

    def add(self, tile: Tile, tokens: slice, part: jax.Array) -> None:
        """Add a product of a tile to the sum for these tokens."""
        place = (tile.block, tokens.start)
        sums = self.sums.setdefault(place, {})
        sums[tile.head] = sums[tile.head] + part if tile.head in sums else part
        self.added[place] = self.added.get(place, 0) + 1
        if self.added[place] == self.count * self.heads:
            self.write(tile.block, tokens, [sums[head] for head in range(self.heads)])
            del self.sums[place]


class Shared:
    """Compute the mask and the counters of the dropout hash once for all heads of a row.

    Both are tables [keys, queries]. They are computed for the first block of heads of a row, or in
    every program if a program has only part of the queries.
    """

    def __init__(self, plan: Plan, refs: dict[str, Ref]):
        self.plan, self.refs = plan, refs
        self.group, self.part = pl.program_id(1), pl.program_id(2)
        if plan.masked or plan.rate:
            pl.when(self.group == 0 if plan.parts == 1 else True)(self._fill)

    def _fill(self) -> None:
        plan, refs = self.plan, self.refs
        if plan.masked:
            column = jnp.broadcast_to(refs["key_ids"][0], (TILE, plan.padded)).T
            for queries in tiles_of(plan.queries):
                seen = column == refs["query_ids"][0, :, queries]
                refs["bias"][:, queries] = jnp.where(seen, 0.0, UNSEEN)
        if plan.rate:
            shape = (plan.padded, plan.queries)
            key = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
            query = jax.lax.broadcasted_iota(jnp.int32, shape, 1) + self.part * plan.queries
            index = (query * plan.length + key).astype(jnp.uint32)
            refs["counters"][...] = hash_counters(index)

    def mask(self, scores: jax.Array, tile: Tile) -> jax.Array:
        """Hide the keys that a query does not see."""
        return scores + self.refs["bias"][tile.keys, tile.queries] if self.plan.masked else scores

    def drop(self, weights: jax.Array, tile: Tile) -> jax.Array:
        """Zero the dropped elements, without scaling the others."""
        plan = self.plan
        if not plan.rate:
            return weights
        head = (self.group * plan.group + tile.block) * plan.heads + tile.head
        first, second = (self.refs["states"][0, 0, 2 * head + word] for word in range(2))
        counters = self.refs["counters"][tile.keys, tile.queries]
        return jnp.where(keep_counters(counters, first, second, plan.rate), weights, 0.0)


def split(plan: Plan, refs: Sequence[Ref]) -> tuple[Sequence[Ref], Shared]:
    """Split off the references that `Shared` needs.

    These are the first operands (hash states and segment ids) and the last scratch buffers.
    """
    names = ["states"] * bool(plan.rate) + ["query_ids", "key_ids"] * plan.masked
    tables = ["counters"] * bool(plan.rate) + ["bias"] * plan.masked
    end = len(refs) - len(tables)
    shared = dict(zip([*names, *tables], [*refs[: len(names)], *refs[end:]], strict=True))
    return refs[len(names) : end], Shared(plan, shared)
