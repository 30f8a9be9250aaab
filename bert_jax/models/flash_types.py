"""Define the interface of the fused attention kernels in `flash_gpu` and `flash_tpu`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import jax

# The segments of the queries and of the keys, int32 [batch, length]. A query sees only the keys in
# the same segment.
Segments = tuple[jax.Array, jax.Array]


class Dropout(NamedTuple):
    """Dropout of attention probabilities inside a kernel.

    The kernel drops exactly the elements that `models.dropout.keep_mask` drops in a mask of the
    shape [batch, num_heads, length, length].

    Attributes:
      rate: the dropout rate, more than 0 and less than 1.
      states: the two hash states of each head in each row, uint32 [batch, num_heads, 2]; see
        `models.dropout.matrix_states`.
    """

    rate: float
    states: jax.Array


class FlashKernels(Protocol):
    """A module with kernels for one kind of device.

    Attributes:
      SCALES_SCORES: whether the kernels divide the scores by the square root of `head_dim`. If not,
        the caller divides the query.
    """

    SCALES_SCORES: bool

    def supported(self, length: int, head_dim: int, window: int | None) -> str | None:
        """Return the reason why these sizes are not supported, as a clause; None if they are.

        Args:
          length: the number of tokens per row.
          head_dim: the dimension of a head.
          window: see `forward`.
        """

    def forward(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        segments: Segments | None,
        dropout: Dropout | None,
        window: int | None,
        *,
        interpret: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        """Return the attended values and the log-sum-exp of each query's scores.

        The values for a query that sees no key are 0.

        Args:
          query: [batch, length, num_heads, head_dim].
          key: same shape and dtype as `query`.
          value: same shape and dtype as `query`.
          segments: the segments of the queries and of the keys; None if every query sees every key.
          dropout: dropout of the probabilities; None for none.
          window: the number of tokens that each token sees, an odd number that includes the token
            itself; None for all tokens.
          interpret: whether to run the kernel in Pallas's interpreter, on any device.

        Returns:
          The attended values, with the shape and dtype of `query`, and the log-sum-exp, float32
          [batch, num_heads, length].
        """

    def backward(
        self,
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
        """Return the gradients of `query`, `key` and `value`.

        Args:
          query: see `forward`.
          key: see `forward`.
          value: see `forward`.
          segments: see `forward`.
          dropout: see `forward`.
          window: see `forward`.
          attended: the first result of `forward`.
          log_sum_exp: the second result of `forward`.
          cotangent: the gradient of `attended`, with its shape and dtype.
          interpret: see `forward`.
        """
