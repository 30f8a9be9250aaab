"""Choose the number of rows in a batch and their lengths, so that a batch fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from bert_jax.labeled_data.feature_batches import MULTIPLE, choose_lengths
from bert_jax.models.config import EncoderConfig
from bert_jax.training.sharding import batch_extent

# The maximum size of one layer's attention scores on a device, unless a single row needs more. This
# is the size for 65,536 tokens in rows of 512 with the 16 heads of BERT-large. For that model, it
# therefore limits only batches of longer rows: a row's attention scores grow with the square of its
# length.
MAX_ATTENTION_BYTES = 1 << 31
_FLOAT = 4  # bytes


class BatchTokens(NamedTuple):
    """The maximum number of tokens in a batch on each device.

    Attributes:
      on_cpu: the maximum on a CPU, where activations should fit in the caches.
      elsewhere: the maximum on an accelerator.
    """

    on_cpu: int
    elsewhere: int

    @property
    def here(self) -> int:
        """The maximum number of tokens on the devices that JAX uses."""
        return self.on_cpu if jax.default_backend() == "cpu" else self.elsewhere


TEXT_TOKENS = BatchTokens(4096, 65_536)
SENTENCE_TOKENS = BatchTokens(1024, 65_536)


@dataclass(frozen=True)
class BatchLimits:
    """The limits on the shape of a model's batches.

    Attributes:
      max_positions: the model's number of positions.
      num_heads: the number of attention heads that each device computes.
      num_parts: the number of parts that a batch is split into; it divides the number of rows.
    """

    max_positions: int
    num_heads: int
    num_parts: int = 1

    @staticmethod
    def of(encoder: EncoderConfig, mesh: Mesh | None = None) -> BatchLimits:
        """Return the limits for an encoder on a mesh, or on one device if `mesh` is None."""
        if mesh is None:
            return BatchLimits(encoder.max_positions, encoder.num_heads)
        heads = -(-encoder.num_heads // mesh.shape["tensor"])
        return BatchLimits(encoder.max_positions, heads, batch_extent(mesh))

    def num_rows(self, length: int, tokens: int, num_available: int) -> int:
        """Return how many rows of `length` tokens to put into a batch.

        Args:
          length: the number of tokens in a row.
          tokens: the maximum number of tokens in a batch on each device. A device gets at least one
            row, even if that row has more tokens.
          num_available: the number of available rows. If they do not fill a batch, the result is
            the next power of two that is divisible by `num_parts`.
        """
        in_memory = MAX_ATTENTION_BYTES // self._attention_bytes(1, length)
        full = self.num_parts * max(1, min(tokens // length, in_memory))
        rows = min(full, 1 << (num_available - 1).bit_length())
        return -(-rows // self.num_parts) * self.num_parts

    def num_batches(self, num_rows: int, length: int) -> int:
        """Return how many batches of this shape one device may compute at the same time."""
        rows = num_rows // self.num_parts
        return max(1, MAX_ATTENTION_BYTES // self._attention_bytes(rows, length))

    def _attention_bytes(self, rows: int, length: int) -> int:
        """Return the size of one layer's attention scores for `rows` rows on a device."""
        return rows * self.num_heads * length**2 * _FLOAT

    def row_lengths(
        self,
        sizes: NDArray[np.int64],
        num_lengths: int,
        *,
        weights: NDArray[np.int64] | None = None,
        multiple: int = MULTIPLE,
    ) -> tuple[int, ...]:
        """Return row lengths chosen by `choose_lengths`, capped at the number of positions.

        Args:
          sizes: [rows] token counts, at most `max_positions`.
          num_lengths: the maximum number of row lengths.
          weights: see `choose_lengths`.
          multiple: a number; every row length is a multiple of it, except one that is capped.
        """
        lengths = choose_lengths(sizes, num_lengths, weights=weights, multiple=multiple)
        return tuple(min(length, self.max_positions) for length in lengths)
