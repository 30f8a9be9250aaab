"""Build layers whose parameters have logical axes, and constrain the sharding of activations."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
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
from bert_jax.models.products import affine, affine_float32
from bert_jax.models.rematerialization import DENSE

Axes = tuple[str | None, ...]


@dataclass(frozen=True)
class Layout:
    """How the devices of a mesh divide arrays, given the logical axes of the arrays.

    Attributes:
      constrain: returns an array, sharded by its logical axes.
      split: takes the arguments of `on_every_device`. It calls the function on every device with
        this device's parts of the function's arguments, and returns the whole result.
      divides: takes a logical axis, and returns whether several devices divide it.
    """

    constrain: Callable[[jax.Array, Axes], jax.Array]
    split: Callable[
        [
            Callable[..., Any],
            Sequence[jax.Array | None],
            Sequence[Axes],
            Axes | list[Axes],
            str | None,
        ],
        Any,
    ]
    divides: Callable[[str], bool]


_LAYOUT: ContextVar[Layout | None] = ContextVar("layout", default=None)


@contextlib.contextmanager
def use_layout(layout: Layout | None) -> Iterator[None]:
    """Divide arrays as in `layout` inside the `with` block; None leaves them whole."""
    token = _LAYOUT.set(layout)
    try:
        yield
    finally:
        _LAYOUT.reset(token)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Return `x`, sharded by its logical axes (one per dim) inside a `use_layout` block."""
    layout = _LAYOUT.get()
    return x if layout is None else layout.constrain(x, axes)


def is_divided(axis: str) -> bool:
    """Return whether several devices divide a logical axis inside a `use_layout` block."""
    layout = _LAYOUT.get()
    return layout is not None and layout.divides(axis)


def on_every_device(
    function: Callable[..., Any],
    arguments: Sequence[jax.Array | None],
    axes: Sequence[Axes],
    result_axes: Axes | list[Axes],
    *,
    sum_over: str | None = None,
) -> Any:
    """Call a function that the compiler cannot divide over devices, such as a Pallas kernel.

    Inside a `use_layout` block, every device calls it with its own parts of the arguments.

    Args:
      function: the function. Its result for a part of the arguments is the same part of its result.
      arguments: the function's arguments; None is passed unchanged.
      axes: the logical axes of each argument. An axis has the same size in all arguments.
      result_axes: the logical axes of the result, or a list of them for a tuple of results. Each
        result is an array or a tuple of arrays with these axes; the devices' parts are
        concatenated.
      sum_over: a logical axis of the arguments over which the function sums, so that the devices
        must add up their results; None if there is none.
    """
    layout = _LAYOUT.get()
    if layout is None:
        return function(*arguments)
    return layout.split(function, arguments, axes, result_axes, sum_over)


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
    """Return Devlin et al.'s initializer, a normal truncated at 2 standard deviations."""
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
        multiply_ones: bool,
        **options: Any,
    ):
        super().__init__(in_features, out_features, **options)
        self.ops = ops
        self.products = products
        self.multiply_ones = multiply_ones

    def __call__(self, inputs: jax.Array, out_sharding: None = None) -> jax.Array:
        """Map [rows, in_features] or [batch, length, in_features] to [..., out_features].

        The result has the compute dtype.
        """
        assert out_sharding is None
        compute: Callable[..., jax.Array]
        match self.products:
            case "dtype":
                compute = partial(with_ops(affine, self.ops), multiply_ones=self.multiply_ones)
            case "fp8" | "fp8_emulated":
                compute = affine_float8
            case _:
                assert_never(self.products)
        bias = None if self.bias is None else self.bias[...]
        return self.named(compute(inputs.astype(self.dtype), self.kernel[...], bias))

    def named(self, result: jax.Array) -> jax.Array:
        """Return the layer's result under the name that `remat="dots"` recognizes."""
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

    For `products`, see `ComputeConfig`. Only dense layers made by `layer_dense` follow its setting.
    For `multiply_ones`, see `affine`.
    """
    return Dense(
        in_dim,
        out_dim,
        use_bias=bias,
        ops=compute.ops,
        products=products,
        multiply_ones=multiply_ones,
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

    The implementation multiplies `x` by a one-hot matrix, which is exact and whose gradient is a
    matmul too. The gradient of a gather is a scatter, which is slow on accelerators and
    nondeterministic on GPUs.
    """
    one_hot = jax.nn.one_hot(positions, x.shape[1], dtype=x.dtype)
    # HIGHEST keeps float32 inputs exact; the default precision may round them to bfloat16 or TF32.
    return jnp.einsum("bkl,bld->bkd", one_hot, x, precision=jax.lax.Precision.HIGHEST)
