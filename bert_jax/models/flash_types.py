"""Define the operands that the fused attention kernels share."""

from __future__ import annotations

from typing import NamedTuple

import jax

# The segment of each query and of each key, two int32 arrays [batch, length]. A query sees the keys
# with its segment.
Segments = tuple[jax.Array, jax.Array]


class Dropout(NamedTuple):
    """Dropout of the attention probabilities, with the mask of `models.dropout.keep_mask`.

    Attributes:
      rate: the dropout rate, more than 0 and less than 1.
      states: uint32 [batch, num_heads, 2], the two hash states of each head's mask, from
        `models.dropout.matrix_states`.
    """

    rate: float
    states: jax.Array
