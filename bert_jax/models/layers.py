"""Parameterized layers with their logical axes, and where activations are laid out."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.config import ComputeConfig, EncoderConfig, Ops
from bert_jax.models.ops import affine, affine_float32, with_ops

Axes = tuple[str | None, ...]
Layout = Callable[[jax.Array, tuple[str | None, ...]], jax.Array]
_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextlib.contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
    """Applies `layout` to every `constrain` inside the block; None leaves arrays as they are."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x` laid out by its logical axes (one a dim), if a layout is in force."""
    layout = _LAYOUT.get()
    return x if layout is None else layout(x, axes)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gather(parameter: jax.Array, axes: Axes, own_axes: Axes) -> jax.Array:
    """A parameter laid out by `own_axes`, laid out by `axes` for its use.

    Its gradient returns to `own_axes`. `constrain` alone would lay out the gradient by `axes` as
    well: every device would sum all of what it keeps only a part of.
    """
    return constrain(parameter, *axes)


def _gather_forward(parameter: jax.Array, axes: Axes, own_axes: Axes) -> tuple[jax.Array, None]:
    return gather(parameter, axes, own_axes), None


def _gather_backward(axes: Axes, own_axes: Axes, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (constrain(gradient, *own_axes),)


gather.defvjp(_gather_forward, _gather_backward)


# Plain pytrees: no shared references between modules, ordinary jax.jit / grad / scan on top.
nnx.set_graph_mode(False)
nnx.set_graph_updates(False)


def compute_dtype(compute: ComputeConfig) -> jnp.dtype:
    """The dtype of activations.

    Raises:
      ValueError: `compute` still says "auto"; call `ComputeConfig.resolve` first.
    """
    if compute.dtype == "auto":
        raise ValueError("compute.dtype is 'auto': call ComputeConfig.resolve(device, config)")
    return jnp.dtype(compute.dtype)


def initializer(config: EncoderConfig) -> nnx.Initializer:
    """Normal, truncated at two standard deviations (the original release of Devlin et al.)."""
    # The stddev argument is that of the normal before truncation, as in the original code.
    return nnx.initializers.truncated_normal(stddev=config.initializer_range)


DENSE = "dense"  # what rematerialisation calls the results of products with parameters


class Dense(nnx.Linear):
    """An affine map, computed by `affine`: for its backward pass."""

    def __init__(self, in_features: int, out_features: int, *, ops: Ops, **options: Any):
        super().__init__(in_features, out_features, **options)
        self.ops = ops

    def __call__(self, inputs: jax.Array, out_sharding: None = None) -> jax.Array:
        """[rows, in_features] or [batch, length, in_features] to as many out_features.

        In the compute dtype.
        """
        assert self.bias is not None and out_sharding is None
        compute = with_ops(affine, self.ops)
        result = compute(inputs.astype(self.dtype), self.kernel[...], self.bias[...])
        return checkpoint_name(result, DENSE)


def dense(
    in_dim: int,
    out_dim: int,
    axes: tuple[str | None, str | None],
    config: EncoderConfig,
    compute: ComputeConfig,
    rngs: nnx.Rngs,
) -> Dense:
    """An affine map whose kernel [in_dim, out_dim] has logical `axes`."""
    return Dense(
        in_dim,
        out_dim,
        ops=compute.ops,
        dtype=compute_dtype(compute),
        kernel_init=initializer(config),
        kernel_metadata={"logical_axes": axes},
        bias_metadata={"logical_axes": (axes[1],)},
        rngs=rngs,
    )


def scores_of(layer: Dense, x: jax.Array) -> jax.Array:
    """The affine map of `dense`, from the compute dtype to float32 scores [..., out_dim].

    What a loss or a ranking reads is not rounded to bfloat16.
    """
    assert layer.bias is not None
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    compute = with_ops(affine_float32, layer.ops)
    scores = compute(rows, layer.kernel[...].astype(x.dtype).T, layer.bias[...])
    return scores.reshape(*x.shape[:-1], scores.shape[-1])


def layer_norm(
    dim: int, config: EncoderConfig, compute: ComputeConfig, rngs: nnx.Rngs
) -> nnx.LayerNorm:
    """Layer normalisation over the last dim, statistics in float32 (Ba et al. 2016)."""
    return nnx.LayerNorm(
        dim,
        epsilon=config.layer_norm_epsilon,
        dtype=compute_dtype(compute),
        # E[(x - E[x])^2], not E[x^2] - E[x]^2: the latter cancels when |mean| >> deviation.
        use_fast_variance=False,
        scale_metadata={"logical_axes": ("norm",)},
        bias_metadata={"logical_axes": ("norm",)},
        rngs=rngs,
    )


def embedding_table(
    num_embeddings: int,
    dim: int,
    axes: tuple[str | None, str | None],
    config: EncoderConfig,
    rngs: nnx.Rngs,
) -> nnx.Param[jax.Array]:
    """A float32 table [num_embeddings, dim] with logical `axes`."""
    value = initializer(config)(rngs.params(), (num_embeddings, dim), jnp.float32)
    return nnx.Param(value, logical_axes=axes)


def select_rows(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Rows of `x` [batch, length, dim] at `positions` [batch, count]: [batch, count, dim].

    A product with a one-hot matrix: exact, and its gradient is a product too, where a gather's
    would be a scatter (slow on accelerators, not deterministic on GPUs).
    """
    one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)
    # HIGHEST keeps float32 inputs exact where the default would round them to bf16 or tf32.
    return jnp.einsum("bkl,bld->bkd", one_hot, x, precision=jax.lax.Precision.HIGHEST)
