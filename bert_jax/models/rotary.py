"""Rotate queries and keys by angles that grow with the position (Su et al. 2021, "RoFormer")."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray


def frequencies(head_dim: int, theta: float) -> NDArray[np.float32]:
    """Return the angle between consecutive positions for each pair of features, [head_dim / 2].

    The frequencies are computed in float32, because released models were trained with frequencies
    in this precision. At position 8,192, the last bit of a frequency changes the angle by 5e-4.

    Args:
      head_dim: the dimension of an attention head, which is even.
      theta: the base of the angles.
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.float32(1.0) / np.float32(theta) ** exponents


class Rotation(NamedTuple):
    """The cosines and sines of the angles at each position, float32 [batch, length, head_dim / 2].

    If all rows have the same positions, `batch` is 1.
    """

    cosine: jax.Array
    sine: jax.Array

    def at(self, positions: jax.Array) -> Rotation:
        """Return the rotation of the tokens at `positions` [batch, count] in each row."""

        def select(angles: jax.Array) -> jax.Array:
            shape = (len(positions), *angles.shape[1:])
            return jnp.take_along_axis(jnp.broadcast_to(angles, shape), positions[..., None], 1)

        return Rotation(select(self.cosine), select(self.sine))


def rotation(position_ids: jax.Array | None, length: int, head_dim: int, theta: float) -> Rotation:
    """Return the rotation of every position (Su et al. 2021, section 3.2.2).

    Args:
      position_ids: [batch, length], or None for 0, 1, 2, ...
      length: the number of tokens per row.
      head_dim: the dimension of an attention head, which is even.
      theta: the base of the angles.
    """
    positions = jnp.arange(length)[None] if position_ids is None else position_ids
    angles = positions[..., None].astype(jnp.float32) * frequencies(head_dim, theta)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotate(x: jax.Array, by: Rotation) -> jax.Array:
    """Rotate queries or keys `x` [batch, length, num_heads, head_dim] in float32.

    Feature i is rotated together with feature i + head_dim / 2, as in the releases of ModernBERT
    and most other models. The result has the dtype of `x`.
    """
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosine, sine = by.cosine[:, :, None], by.sine[:, :, None]
    rotated = [first * cosine - second * sine, second * cosine + first * sine]
    return jnp.concatenate(rotated, axis=-1).astype(x.dtype)
