"""Compute attention with this package's fused kernels, which apply attention dropout.

The kernels never store the attention scores, the dropout mask, or a mask of pairs of tokens (Dao
2023, "FlashAttention-2"). They drop the same probabilities as `softmax_attention`, since the mask
is a hash of a key and the position.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.attention_choice import FlashBackend, flash_kernels
from bert_jax.models.dropout import matrix_states
from bert_jax.models.flash_types import Dropout, Segments
from bert_jax.models.interpreter import is_interpreted
from bert_jax.models.layout import Axes, on_every_device
from bert_jax.models.rematerialization import ATTENDED

_HEADS: Axes = ("batch", None, "heads", None)
_NUMBERS: Axes = ("batch", "heads", None)  # for a few numbers per head and row
_ROW: Axes = ("batch", None)
_EVERY_KEY = (None, None)  # replaces the segments if every query sees every key


def flash_attention(
    backend: FlashBackend,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    document_ids: jax.Array | None,
    packed: bool,
    window: int | None,
    dropout_rate: float,
    dropout_key: jax.Array | None,
) -> jax.Array:
    """Let each token attend to the tokens in its document, or to those within a window around it.

    Up to rounding, the result is the same as for attention with a mask. In a row with one document,
    a padding query may see no key, because the row is empty or its tokens are too far away. The
    result for this query is then zero, as in PyTorch's `scaled_dot_product_attention`.

    Args:
      backend: the kernels to use.
      query: [batch, length, num_heads, head_dim].
      key: same shape and dtype as `query`.
      value: same shape and dtype as `query`.
      document_ids: [batch, length], or None if all tokens of a row are in one document.
      packed: whether a row may contain multiple documents. If so, padding attends to padding;
        otherwise it attends to the document's tokens.
      window: the number of tokens that each token attends to, an odd number that includes the
        token itself; None for all tokens.
      dropout_rate: dropout rate for the attention probabilities.
      dropout_key: None during evaluation.

    Returns:
      [batch, length, num_heads, head_dim] in the dtype of `query`.

    Raises:
      ValueError: the kernels do not support the shape.
    """
    batch, length, num_heads, head_dim = query.shape
    kernels = flash_kernels(backend)
    reason = kernels.supported(length, head_dim, window)
    if reason is not None:
        raise ValueError(f"compute.attention={backend!r} {reason}. Set compute.attention='xla'")
    if not kernels.SCALES_SCORES:
        query = query * jnp.asarray(head_dim**-0.5, query.dtype)
    states = None
    if dropout_key is not None and dropout_rate > 0.0:
        states = jnp.stack(matrix_states(dropout_key, (batch, num_heads)), axis=-1)
    segments = None if document_ids is None else _segments(document_ids, packed)
    rate = None if states is None else dropout_rate
    options = _Options(backend, window, rate, is_interpreted())
    return _attend(query, key, value, segments, states, options)


def _segments(document_ids: jax.Array, packed: bool) -> Segments:
    if packed:
        return document_ids, document_ids
    tokens = (document_ids != 0).astype(jnp.int32)
    return jnp.ones_like(tokens), tokens


@dataclass(frozen=True)
class _Options:
    """The static arguments of a kernel.

    Attributes:
      backend: the kernels to use.
      window: the window; None for all tokens.
      dropout_rate: the dropout rate; None without dropout.
      interpret: whether the kernels run in the interpreter.
    """

    backend: FlashBackend
    window: int | None
    dropout_rate: float | None
    interpret: bool

    def dropout(self, states: jax.Array | None) -> Dropout | None:
        """Return the dropout settings of a call, given its hash states."""
        if self.dropout_rate is None:
            return None
        assert states is not None
        return Dropout(self.dropout_rate, states)


# The arguments of a kernel on one device: query, key, value, states, and two arrays of segments.
_Inputs = tuple[
    jax.Array, jax.Array, jax.Array, jax.Array | None, jax.Array | None, jax.Array | None
]


def _arguments(options: _Options, inputs: _Inputs) -> tuple[Any, ...]:
    """Return the arguments that `FlashKernels.forward` and `backward` have in common."""
    query, key, value, states, query_ids, key_ids = inputs
    segments = None if query_ids is None else (query_ids, key_ids)
    return query, key, value, segments, options.dropout(states), options.window


def _forward_part(options: _Options, *inputs: Any) -> tuple[jax.Array, jax.Array]:
    kernels = flash_kernels(options.backend)
    return kernels.forward(*_arguments(options, inputs), interpret=options.interpret)


def _backward_part(options: _Options, *operands: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    inputs, others = operands[:6], operands[6:]
    kernels = flash_kernels(options.backend)
    return kernels.backward(*_arguments(options, inputs), *others, interpret=options.interpret)


_Saved = tuple[
    jax.Array, jax.Array, jax.Array, Segments | None, jax.Array | None, jax.Array, jax.Array
]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: Segments | None,
    states: jax.Array | None,
    options: _Options,
) -> jax.Array:
    return _forward(query, key, value, segments, states, options)[0]


def _forward(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: Segments | None,
    states: jax.Array | None,
    options: _Options,
) -> tuple[jax.Array, _Saved]:
    attended, log_sum_exp = on_every_device(
        functools.partial(_forward_part, options),
        (query, key, value, states, *(segments or _EVERY_KEY)),
        (_HEADS, _HEADS, _HEADS, _NUMBERS, _ROW, _ROW),
        [_HEADS, _NUMBERS],
    )
    # Name these results, so that with remat="dots", the backward pass uses them instead of running
    # the kernel again.
    attended = checkpoint_name(attended, ATTENDED)
    log_sum_exp = checkpoint_name(log_sum_exp, ATTENDED)
    return attended, (query, key, value, segments, states, attended, log_sum_exp)


def _backward(
    options: _Options, saved: _Saved, cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, None, None]:
    query, key, value, segments, states, attended, log_sum_exp = saved
    gradients: tuple[jax.Array, jax.Array, jax.Array] = on_every_device(
        functools.partial(_backward_part, options),
        (query, key, value, states, *(segments or _EVERY_KEY), attended, log_sum_exp, cotangent),
        (_HEADS, _HEADS, _HEADS, _NUMBERS, _ROW, _ROW, _HEADS, _NUMBERS, _HEADS),
        [_HEADS, _HEADS, _HEADS],
    )
    return (*gradients, None, None)


_attend.defvjp(_forward, _backward)
