"""Choose the values that the backward pass keeps if it recomputes all other activations."""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive

# The names of the outputs of dense layers and of attention (`jax.ad_checkpoint.checkpoint_name`).
DENSE = "dense"
ATTENDED = "attended"
# JAX does not name the results of cuDNN's fused attention, so they are identified by their
# operation.
_CUDNN_ATTENTION = "dot_product_attention_fwd_wrapper"
_is_named = jax.checkpoint_policies.save_only_these_names(DENSE, ATTENDED)


def keeps_dense_and_attention(primitive: Primitive, *operands: Any, **options: Any) -> bool:
    """Return whether to keep the results of an operation; a policy for `jax.checkpoint`.

    The backward pass keeps the outputs of dense layers and of attention, and the numbers that fused
    attention saves for each query. If attention has a custom backward pass, the arrays that its
    forward pass saves must be named `DENSE` or `ATTENDED`. Otherwise, they would be recomputed.
    """
    if primitive.name == _CUDNN_ATTENTION:
        return True
    keeps: bool = _is_named(primitive, *operands, **options)
    return keeps
