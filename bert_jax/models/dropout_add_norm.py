"""Add the output of a block to its input, with dropout, and normalize the sum."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, assert_never

import jax
import jax.numpy as jnp

from bert_jax.models.dropout import dropout, matrix_states
from bert_jax.models.interpreter import is_interpreted
from bert_jax.models.layout import Axes, on_every_device
from bert_jax.models.norms import LayerNorm, Norm
from bert_jax.models.options import NormBackend

if TYPE_CHECKING:
    from bert_jax.models.norm_kernel_bodies import Settings
    from bert_jax.models.norm_kernels import Statistics

_MATRICES: Axes = ("batch", None, None)
_NUMBERS: Axes = ("batch", None)  # for a few numbers per row or per token
_PARAMETER: Axes = ("norm",)


def dropout_add_norm(
    x: jax.Array,
    update: jax.Array,
    rate: float,
    key: jax.Array | None,
    norm: Norm,
    backend: NormBackend,
) -> jax.Array:
    """Return the norm of x + dropout(update).

    With the "triton" backend, one kernel computes the norm during training, and another computes
    the gradients. The kernels drop the same elements as `dropout` and round at the same points.
    Only the sum and one or two numbers per vector are kept for the backward pass.

    Args:
      x: [batch, length, dim].
      update: same shape and dtype as `x`.
      rate: the dropout rate for `update`.
      key: the key for dropout; None during evaluation.
      norm: the norm that is applied to the sum.
      backend: see `ComputeConfig.norms`; "auto" means "xla" if it has not been resolved for a
        device.
    """
    if key is not None and _is_fused(backend):
        return _kernel(x, update, rate, key, norm, returns_sum=False)[1]
    return norm(x + dropout(update, rate, key, norm.ops))


def dropout_add_and_norm(
    x: jax.Array,
    update: jax.Array,
    rate: float,
    key: jax.Array | None,
    norm: Norm,
    backend: NormBackend,
) -> tuple[jax.Array, jax.Array]:
    """Return x + dropout(update), and its norm; see `dropout_add_norm`."""
    if key is not None and _is_fused(backend):
        total, normed = _kernel(x, update, rate, key, norm, returns_sum=True)
        assert total is not None
        return total, normed
    plain = x + dropout(update, rate, key, norm.ops)
    return plain, norm(plain)


def _is_fused(backend: NormBackend) -> bool:
    match backend:
        case "triton":
            return True
        case "xla" | "auto":
            return False
        case _:
            assert_never(backend)


def _kernel(
    x: jax.Array, update: jax.Array, rate: float, key: jax.Array, norm: Norm, *, returns_sum: bool
) -> tuple[jax.Array | None, jax.Array]:
    from bert_jax.models.norm_kernel_bodies import Settings

    assert norm.scale is not None and x.dtype == update.dtype == norm.dtype
    centered = isinstance(norm, LayerNorm)
    bias = norm.bias if isinstance(norm, LayerNorm) else None
    states = jnp.stack(matrix_states(key, x.shape[:1]), axis=-1) if rate > 0.0 else None
    return _fused(
        x,
        update,
        states,
        norm.scale[...],
        None if bias is None else bias[...],
        Settings(rate, norm.epsilon, centered, is_interpreted()),
        returns_sum,
    )


# The arrays kept for the backward pass: the sum, the hash states, the scale, the bias and the
# statistics.
_Saved = tuple[jax.Array, jax.Array | None, jax.Array, jax.Array | None, "Statistics"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _fused(
    x: jax.Array,
    update: jax.Array,
    states: jax.Array | None,
    scale: jax.Array,
    bias: jax.Array | None,
    settings: Settings,
    returns_sum: bool,
) -> tuple[jax.Array | None, jax.Array]:
    return _forward(x, update, states, scale, bias, settings, returns_sum)[0]


def _forward(
    x: jax.Array,
    update: jax.Array,
    states: jax.Array | None,
    scale: jax.Array,
    bias: jax.Array | None,
    settings: Settings,
    returns_sum: bool,
) -> tuple[tuple[jax.Array | None, jax.Array], _Saved]:
    from bert_jax.models.norm_kernels import forward

    total, normed, statistics = on_every_device(
        functools.partial(forward, settings=settings),
        (x, update, states, scale, bias),
        (_MATRICES, _MATRICES, _NUMBERS, _PARAMETER, _PARAMETER),
        [_MATRICES, _MATRICES, _NUMBERS],
    )
    saved = (total, states, scale, bias, statistics)
    return (total if returns_sum else None, normed), saved


def _backward(
    settings: Settings,
    returns_sum: bool,
    saved: _Saved,
    cotangents: tuple[jax.Array | None, jax.Array],
) -> tuple[jax.Array, jax.Array, None, jax.Array, jax.Array | None]:
    from bert_jax.models.norm_kernels import backward

    total, states, scale, bias, (mean, inverse) = saved
    to_total, to_normed = cotangents
    to_x, to_update, sums = on_every_device(
        functools.partial(backward, settings=settings, has_bias=bias is not None),
        (total, states, scale, mean, inverse, to_total, to_normed),
        (_MATRICES, _NUMBERS, _PARAMETER, _NUMBERS, _NUMBERS, _MATRICES, _MATRICES),
        [_MATRICES, _MATRICES, _MATRICES],
    )
    to_parameters = jnp.sum(sums, axis=0)
    return to_x, to_update, None, to_parameters[0], None if bias is None else to_parameters[1]


_fused.defvjp(_forward, _backward)
