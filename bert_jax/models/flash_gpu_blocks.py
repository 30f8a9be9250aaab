"""Choose the blocks of queries and keys that the attention kernels for GPUs work on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

# In Triton, array sizes are powers of 2, and matrix products need at least 16 rows and columns.
_SMALLEST_BLOCK = 16


@dataclass(frozen=True)
class Tiles:
    """How a kernel divides a row into blocks, and how it is compiled.

    Attributes:
      queries: the number of queries in a block.
      keys: the number of keys in a block.
      warps: the number of warps (32 threads each) in a program.
      stages: the number of blocks in shared memory, one in use and the others being loaded.
    """

    queries: int
    keys: int
    warps: int
    stages: int


class Choices(NamedTuple):
    """The tiles of a kernel, by the size and dtype of the heads.

    With these tiles, the compiler (jax 0.10.2, ptxas 13.5) spills no registers for compute
    capability 9.0 and at most 8 bytes for 8.0. At least two programs fit into a multiprocessor.
    Every kernel needs at most 99 KiB of shared memory, which all GPUs since compute capability 8.0
    have. Timings were not compared.

    Attributes:
      narrow: for heads of up to 64 dims in a 16-bit dtype.
      local: like `narrow`, but for attention within a window. With larger blocks, each program
        would visit many keys outside the windows of its queries.
      wide: for larger heads in a 16-bit dtype.
      float32: for all heads in float32.
    """

    narrow: Tiles
    local: Tiles
    wide: Tiles
    float32: Tiles


FORWARD = Choices(
    narrow=Tiles(128, 64, 8, 3),
    local=Tiles(64, 64, 4, 3),
    wide=Tiles(64, 64, 4, 2),
    float32=Tiles(64, 32, 4, 2),
)
QUERY_GRADIENT = Choices(
    narrow=Tiles(64, 64, 4, 2),
    local=Tiles(64, 64, 4, 2),
    wide=Tiles(64, 64, 4, 2),
    float32=Tiles(32, 32, 4, 2),
)
KEY_VALUE_GRADIENTS = Choices(
    narrow=Tiles(64, 64, 4, 2),
    local=Tiles(64, 64, 4, 2),
    wide=Tiles(32, 64, 4, 2),
    float32=Tiles(32, 32, 4, 2),
)


def choose(choices: Choices, query: jax.Array, window: int | None) -> Tiles:
    """Return the tiles for the size and dtype of the heads, limited to the length of a row."""
    if query.dtype == jnp.float32:
        tiles = choices.float32
    elif query.shape[3] > 64:
        tiles = choices.wide
    else:
        tiles = choices.narrow if window is None else choices.local
    whole = max(_SMALLEST_BLOCK, pl.next_power_of_2(query.shape[1]))
    return replace(tiles, queries=min(tiles.queries, whole), keys=min(tiles.keys, whole))


@dataclass(frozen=True)
class Rows:
    """The properties of the rows that a kernel is compiled for.

    Attributes:
      length: the number of tokens per row.
      scale: the factor from the dot product of a query and a key to their score.
      reach: the number of tokens on each side that a token sees; None for all.
      rate: the dropout rate; 0 without dropout.
      query_block: the number of queries in a block, a power of 2.
      key_block: the number of keys in a block, a power of 2.
      interpret: whether the kernel runs in Pallas's interpreter.
    """

    length: int
    scale: float
    reach: int | None
    rate: float
    query_block: int
    key_block: int
    interpret: bool

    @property
    def kept_scale(self) -> float:
        """Return the factor by which dropout multiplies the probabilities that it keeps."""
        return 1.0 / (1.0 - self.rate)


def visited_blocks(start: Any, size: int, other: int, rows: Rows) -> tuple[Any, Any]:
    """Return the range of blocks that are within reach of the block of `size` tokens at `start`.

    These blocks have `other` tokens each. The range is returned as its first block and the block
    after its last. `start` is an int or a traced int32 scalar.
    """
    count = -(-rows.length // other)
    if rows.reach is None:
        return 0, count
    last = start + (size - 1 + rows.reach)
    if isinstance(start, int):
        return max(start - rows.reach, 0) // other, min(last // other + 1, count)
    first = jax.lax.div(jnp.maximum(start - rows.reach, 0), other)
    return first, jnp.minimum(jax.lax.div(last, other) + 1, count)


def shared_blocks(own: jax.Array, size: int, other: jax.Array, other_size: int) -> jax.Array:
    """Return the range of blocks of `other` that share a segment with each block of `own`.

    Only the lowest and the highest segment of a block are compared. In a packed row, where segments
    increase, every block without tokens of the same documents is skipped.

    Args:
      own: int32 [batch, length].
      size: the number of tokens in a block of `own`.
      other: int32 [batch, length].
      other_size: the number of tokens in a block of `other`.

    Returns:
      int32 [batch, blocks of `own`, 2], the first block of each range and the block after its last.
    """
    lowest, highest = _ranges(own, size)
    other_lowest, other_highest = _ranges(other, other_size)
    shared = lowest[:, :, None] <= other_highest[:, None, :]
    shared &= highest[:, :, None] >= other_lowest[:, None, :]
    first = jnp.argmax(shared, axis=-1)
    end = shared.shape[-1] - jnp.argmax(shared[..., ::-1], axis=-1)
    end = jnp.where(jnp.any(shared, axis=-1), end, 0)
    return jnp.stack([first, end], axis=-1).astype(jnp.int32)


def _ranges(segments: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Return the lowest and the highest segment in each block of `size` tokens."""
    padded = jnp.pad(segments, ((0, 0), (0, -segments.shape[1] % size)), mode="edge")
    blocks = padded.reshape(len(segments), -1, size)
    return jnp.min(blocks, axis=-1), jnp.max(blocks, axis=-1)
