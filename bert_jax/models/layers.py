"""Build layers whose parameters have logical axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.float8 import affine_float8
from bert_jax.models.options import Ops, Products, with_ops
from bert_jax.models.products import AffineOptions, affine, affine_float32
from bert_jax.models.rematerialization import DENSE

# Make modules plain pytrees without shared references, so that jax.jit, grad and scan accept them.
nnx.set_graph_mode(False)
nnx.set_graph_updates(False)


def compute_dtype(compute: ComputeConfig) -> jnp.dtype:
    """Return the dtype of the activations.

    Raises:
      ValueError: the dtype is still "auto".
    """
    if compute.dtype == "auto":
        raise ValueError(
            "compute.dtype='auto': the dtype depends on the device. Set 'float32' or 'bfloat16', "
            "or pass ComputeConfig.resolve(jax.devices()[0], config)"
        )
    return jnp.dtype(compute.dtype)


def initializer(config: EncoderConfig) -> nnx.Initializer:
    """Return Devlin et al.'s initializer, a truncated normal (at 2 standard deviations)."""
    # `stddev` is the standard deviation before truncation, as in the original code.
    return nnx.initializers.truncated_normal(stddev=config.initializer_range)


class Dense(nnx.Linear):
    """A dense layer that calls `affine` or `affine_float8`, which have custom backward passes."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        ops: Ops,
        products: Products,
        affine_options: AffineOptions,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        self.ops = ops
        self.products = products
        self.affine_options = affine_options

    def __call__(self, inputs: jax.Array, out_sharding: None = None) -> jax.Array:
        """Map [rows, in_features] or [batch, length, in_features] to [..., out_features].

        The result has the compute dtype.
        """
        assert out_sharding is None
        compute: Callable[..., jax.Array]
        match self.products:
            case "dtype":
                compute = partial(with_ops(affine, self.ops), options=self.affine_options)
            case "fp8" | "fp8_emulated":
                compute = affine_float8
            case _:
                assert_never(self.products)
        bias = None if self.bias is None else self.bias[...]
        return self.named(compute(inputs.astype(self.dtype), self.kernel[...], bias))

    def named(self, result: jax.Array) -> jax.Array:
        """Name the layer's result, so that it is kept for the backward pass with `remat="dots"`."""
        named: jax.Array = checkpoint_name(result, DENSE)
        return named


def dense(
    in_dim: int,
    out_dim: int,
    axes: tuple[str | None, str | None],
    config: EncoderConfig,
    compute: ComputeConfig,
    rngs: nnx.Rngs,
    *,
    bias: bool = True,
    products: Products = "dtype",
    multiply_ones: bool = False,
) -> Dense:
    """Return a dense layer with a kernel [in_dim, out_dim] whose logical axes are `axes`.

    `products` is described in `ComputeConfig`; only dense layers made by `layer_dense` use the
    config's setting. `multiply_ones` is described in `AffineOptions`.
    """
    return Dense(
        in_dim,
        out_dim,
        use_bias=bias,
        ops=compute.ops,
        products=products,
        affine_options=AffineOptions(axes, multiply_ones),
        dtype=compute_dtype(compute),
        kernel_init=initializer(config),
        kernel_metadata={"logical_axes": axes},
        bias_metadata={"logical_axes": (axes[1],)},
        rngs=rngs,
    )


def layer_dense(
    in_dim: int,
    out_dim: int,
    axes: tuple[str | None, str | None],
    config: EncoderConfig,
    compute: ComputeConfig,
    rngs: nnx.Rngs,
    *,
    multiply_ones: bool = False,
) -> Dense:
    """Return a dense layer for attention or a feed-forward block; see `dense`."""
    return dense(
        in_dim,
        out_dim,
        axes,
        config,
        compute,
        rngs,
        bias=config.dense_bias,
        products=compute.products,
        multiply_ones=multiply_ones,
    )


def scores_of(layer: Dense, x: jax.Array) -> jax.Array:
    """Apply a dense layer to `x` [..., in_dim] and return float32 scores [..., out_dim].

    Scores are not rounded to bfloat16 because losses and rankings depend on them.
    """
    assert layer.bias is not None
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    compute = with_ops(affine_float32, layer.ops)
    scores = compute(rows, layer.kernel[...].astype(x.dtype).T, layer.bias[...])
    return scores.reshape(*x.shape[:-1], scores.shape[-1])


def embedding_table(
    num_embeddings: int,
    dim: int,
    axes: tuple[str | None, str | None],
    config: EncoderConfig,
    rngs: nnx.Rngs,
) -> nnx.Param[jax.Array]:
    """Return a float32 table [num_embeddings, dim] whose logical axes are `axes`."""
    value = initializer(config)(rngs.params(), (num_embeddings, dim), jnp.float32)
    return nnx.Param(value, logical_axes=axes)


def select_rows(x: jax.Array, positions: jax.Array) -> jax.Array:
    """Select rows [batch, count, dim] of `x` [batch, length, dim] at `positions` [batch, count].

    The implementation multiplies `x` by a one-hot matrix, which is exact. The gradient is then a
    matmul too. The gradient of a gather would be a scatter, which is slow on accelerators and
    nondeterministic on GPUs.
    """
    one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)
    # The precision HIGHEST keeps float32 inputs exact. The default precision may round them to
    # bfloat16 or TF32.
    return jnp.einsum("bkl,bld->bkd", one_hot, x, precision=jax.lax.Precision.HIGHEST)
