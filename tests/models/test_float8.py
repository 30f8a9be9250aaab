"""Compare products in FP8 with PyTorch's conversions, and test scales, meshes and models."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.float8 import Scaled, affine_float8, dequantize, quantize
from bert_jax.models.layers import Dense
from bert_jax.tasks.pretraining import Pretraining

E4M3, E5M2 = jnp.dtype("float8_e4m3fn"), jnp.dtype("float8_e5m2")
TORCH = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
SHAPES = [(1, 1, 1, 1), (1, 7, 3, 5), (2, 16, 24, 40), (3, 33, 64, 16)]


def in_torch(x: Any, dtype: jnp.dtype) -> np.ndarray:
    """Round a tensor to FP8 with PyTorch, scaled by the largest power of two that fits."""
    exact = np.asarray(x, np.float64)
    limit = torch.finfo(TORCH[dtype]).max
    exponent = math.floor(math.log2(limit / np.abs(exact).max())) if exact.any() else 0
    scaled = torch.from_numpy(exact * 2.0**exponent).to(torch.float32).to(TORCH[dtype])
    return scaled.to(torch.float64).numpy() / 2.0**exponent


def rounded(x: jax.Array, dtype: jnp.dtype) -> Scaled:
    return jax.jit(lambda x: quantize(x, jnp.max(jnp.abs(x)), dtype))(x)


def operands(batch: int, length: int, inputs: int, outputs: int) -> list[jax.Array]:
    """Return `x`, a kernel, a bias and a cotangent, of different magnitudes."""
    rng = np.random.default_rng(0)
    shapes = [(batch, length, inputs), (inputs, outputs), (outputs,), (batch, length, outputs)]
    sizes = [1.7, 0.02, 0.3, 1e-5]
    x, *others, cotangent = (
        jnp.asarray(size * rng.normal(size=shape), jnp.float32)
        for size, shape in zip(sizes, shapes, strict=True)
    )
    return [x.astype(jnp.bfloat16), *others, cotangent.astype(jnp.bfloat16)]


def pulled(
    x: jax.Array, kernel: jax.Array, bias: jax.Array | None, cotangent: jax.Array
) -> list[jax.Array]:
    value, pull = jax.vjp(affine_float8, x, kernel, bias)
    return [value, *pull(cotangent)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_and_gradients_match_pytorch(shape: tuple[int, int, int, int]) -> None:
    x, kernel, bias, cotangent = operands(*shape)
    found = jax.jit(pulled)(x, kernel, bias, cotangent)
    assert [one.dtype for one in found] == [jnp.bfloat16] * 2 + [jnp.float32] * 2
    rows, weights, outer = in_torch(x, E4M3), in_torch(kernel, E4M3), in_torch(cotangent, E5M2)
    product = rows @ weights
    expected = [product, outer @ weights.T, np.einsum("bli,blo->io", rows, outer)]
    # The bias, the product and the sum of both are rounded to bfloat16.
    added = np.asarray(bias.astype(jnp.bfloat16), np.float64)
    expected[0] = product + added
    slack = [np.abs(product) + np.abs(expected[0]), np.abs(expected[1]), 0.0]
    for one, exact, rounding in zip(found[:3], expected, slack, strict=True):
        bound = 2**-8 * rounding + 1e-6 * np.abs(exact).max()
        assert (np.abs(np.asarray(one, np.float64) - exact) <= bound).all()
    # The gradient of the bias is not rounded to FP8.
    sums = np.asarray(cotangent, np.float64).sum((0, 1))
    assert_allclose(found[3], sums, rtol=0, atol=1e-6 * np.abs(sums).max())


def test_a_layer_without_bias_has_the_same_products() -> None:
    x, kernel, bias, cotangent = operands(2, 16, 24, 40)
    with_zeros = pulled(x, kernel, jnp.zeros_like(bias), cotangent)
    *without, nothing = pulled(x, kernel, None, cotangent)
    assert nothing is None
    for one, other in zip(without, with_zeros[:3], strict=True):
        assert_array_equal(one, other)


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize(
    "largest",
    [2.0**-110, 1e-30, 0.875, 1.0, 448.0, np.nextafter(np.float32(448), 449), 57344.0, 3e38],
)
def test_a_tensor_uses_the_upper_half_of_the_range(largest: float, dtype: jnp.dtype) -> None:
    rng = np.random.default_rng(1)
    x = np.float32(largest) * np.r_[1.0, rng.uniform(-1, 1, 200)].astype(np.float32)
    found = rounded(jnp.asarray(x), dtype)
    limit = float(jnp.finfo(dtype).max)
    peak = np.abs(np.asarray(found.values, np.float64)).max()
    assert limit / 2 <= peak <= limit
    assert math.frexp(float(found.scale))[0] == 0.5  # The scale is a power of two.
    assert_array_equal(np.asarray(dequantize(found, jnp.float32), np.float64), in_torch(x, dtype))


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_zeros_and_subnormal_numbers_have_a_finite_scale(dtype: jnp.dtype) -> None:
    for x in (jnp.zeros(3), jnp.asarray([1e-40, -1e-39, 0.0], jnp.float32)):
        found = rounded(x, dtype)
        assert 0.0 < float(found.scale) < math.inf
        # CPUs treat subnormal numbers as zeros.
        assert float(jnp.abs(dequantize(found, jnp.float32) - x).max()) <= 1e-38


def test_zero_operands_and_gradients_give_zeros() -> None:
    x, kernel, bias, cotangent = operands(2, 5, 8, 4)
    value, to_x, to_kernel, to_bias = pulled(x, kernel, bias, jnp.zeros_like(cotangent))
    for gradient in (to_x, to_kernel, to_bias):
        assert_array_equal(gradient, 0.0)
    value, *_ = pulled(jnp.zeros_like(x), kernel, bias, cotangent)
    assert_array_equal(value, jnp.broadcast_to(bias.astype(jnp.bfloat16), value.shape))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("operand", [0, 1, 3], ids=["x", "kernel", "cotangent"])
def test_numbers_that_are_not_finite_spread_to_all_products(operand: int, bad: float) -> None:
    """Check a single bad element, which could go unnoticed since E4M3 has no infinity."""
    values = operands(2, 5, 8, 4)
    values[operand] = values[operand].at[(0,) * values[operand].ndim].set(bad)
    value, to_x, to_kernel, _ = jax.jit(pulled)(*values)
    affected = {0: (value, to_kernel), 1: (value, to_x), 3: (to_x, to_kernel)}[operand]
    for result in affected:
        assert bool(jnp.isnan(result).all())


def test_activations_are_kept_in_fp8_between_the_passes() -> None:
    x, kernel, bias, _ = operands(2, 16, 24, 40)
    _, pull = jax.eval_shape(lambda *args: jax.vjp(affine_float8, *args), x, kernel, bias)
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.size >= x.size]
    # `x` and the kernel are kept in FP8.
    assert sorted(str(leaf.dtype) for leaf in kept) == ["float8_e4m3fn"] * 2


def test_only_nvidia_gpus_multiply_fp8_numbers() -> None:
    """Check the operands' dtypes: on GPUs, XLA would remove a conversion to FP8 and back."""
    traced = jax.jit(pulled).trace(*operands(2, 16, 24, 40))

    def products(platform: str) -> list[tuple[str, str]]:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return re.findall(r"dot_general .*: \(tensor<[\dx]*(\w+)>, tensor<[\dx]*(\w+)>\)", text)

    forward, backward = ("f8E4M3FN", "f8E4M3FN"), {"f8E4M3FN", "f8E5M2"}
    first, *others = products("cuda")
    assert first == forward and [set(pair) for pair in others] == [backward] * 2
    for platform in ("cpu", "tpu", "rocm"):
        assert products(platform) == [("bf16", "bf16")] * 3


@pytest.mark.parametrize(
    ("x_spec", "kernel_spec", "maxima"),
    [
        (("data",), (), 2),  # The devices combine the maxima of `x` and of the cotangent.
        (("data",), ("data",), 3),  # The devices also combine the maximum of the kernel.
        # The cotangent has two maxima, one over the rows and one over the columns.
        (("data", None, None), (None, "tensor"), 4),
    ],
    ids=["data", "fsdp", "tensor"],
)
def test_eight_devices_round_to_the_same_numbers_as_one(
    x_spec: tuple[str, ...], kernel_spec: tuple[str | None, ...], maxima: int
) -> None:
    x, kernel, bias, cotangent = operands(8, 16, 24, 40)
    tensor = 2 if "tensor" in kernel_spec else 1
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(8 // tensor, tensor), ("data", "tensor"))
    outer = ("data", None, "tensor") if tensor > 1 else ("data",)
    specs = [x_spec, kernel_spec, kernel_spec[1:], outer]
    shardings = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    divided = jax.jit(pulled, in_shardings=shardings).lower(x, kernel, bias, cotangent).compile()
    found = divided(*map(jax.device_put, (x, kernel, bias, cotangent), shardings))
    expected = jax.jit(pulled)(x, kernel, bias, cotangent)
    for one, other in zip(found, expected, strict=True):
        # The sums may differ in the order of their terms, and may be rounded to bfloat16
        # afterwards.
        scale = float(jnp.abs(other.astype(jnp.float32)).max())
        assert_allclose(
            np.asarray(one, np.float32),
            np.asarray(other, np.float32),
            rtol=2**-7,
            atol=1e-6 * scale,
        )
    # XLA exchanges several maxima at once, if they do not depend on each other.
    exchanged = re.findall(r"= (.*) all-reduce\(.*reduce_max", divided.as_text())
    assert sum(shapes.count("f32[") for shapes in exchanged) == maxima, exchanged


CONFIG = EncoderConfig(
    vocab_size=40,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    ffn_dim=32,
    max_positions=12,
    initializer_range=0.2,
    gated_ffn=True,
)
FP8 = ComputeConfig(dtype="bfloat16", attention="xla", products="fp8_emulated")


def test_only_the_dense_layers_of_the_encoder_multiply_in_fp8() -> None:
    config = dataclasses.replace(CONFIG, embedding_dim=8)
    definition = Pretraining(config, FP8).definition
    model = definition.module(definition.init(jax.random.key(0)))
    kinds: dict[str, list[str]] = {}
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Dense):
            kinds.setdefault(module.products, []).append(".".join(map(str, path)))
    inside = {"query", "key", "value", "output", "gate", "up", "down"}
    assert {path.rpartition(".")[2] for path in kinds["fp8_emulated"]} == inside
    assert len(kinds["fp8_emulated"]) == CONFIG.num_layers * len(inside)
    assert all(path.startswith("encoder.layers.") for path in kinds["fp8_emulated"])
    assert not any(path.startswith("encoder.layers.") for path in kinds["dtype"])
