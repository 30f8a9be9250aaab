"""Compare the model's matmuls with einsum, and their gradients with those computed by JAX."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.test_util import check_grads
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models import products
from bert_jax.models.layout import Layout, use_layout
from bert_jax.models.products import AffineOptions, affine, affine_float32, attention_scores


def arrays(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def pulled(function: Any, operands: list[jax.Array], cotangent: jax.Array) -> list[jax.Array]:
    value, pull = jax.vjp(function, *operands)
    return [value, *pull(cotangent.astype(value.dtype))]


SHAPES = [(1, 1, 1, 4), (1, 7, 1, 3), (2, 16, 2, 8), (3, 5, 4, 64), (2, 130, 2, 64)]
CASES = {
    "affine": (affine, lambda x, kernel, bias: x @ kernel + bias),
    "rows": (affine, lambda x, kernel, bias: x @ kernel + bias),
    "scores": (attention_scores, lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k)),
}


def shapes_of(case: str, batch: int, length: int, heads: int, dim: int) -> list[tuple[int, ...]]:
    """Return the shapes of a case's operands, followed by the shape of its result."""
    sequence, pairs = (batch, length, heads, dim), (batch, heads, length, length)
    hidden, wide = heads * dim, 4 * dim
    return {
        "affine": [(batch, length, hidden), (hidden, wide), (wide,), (batch, length, wide)],
        "rows": [(length, hidden), (hidden, wide), (wide,), (length, wide)],
        "scores": [sequence, sequence, pairs],
    }[case]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_products_and_their_gradients_match_einsum(
    case: str, shape: tuple[int, int, int, int]
) -> None:
    function, formula = CASES[case]
    *operands, cotangent = arrays(*shapes_of(case, *shape))
    expected = pulled(formula, operands, cotangent)
    for found, exact in zip(pulled(function, operands, cotangent), expected, strict=True):
        assert_allclose(found, exact, rtol=0, atol=1e-5 * float(jnp.abs(exact).max()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_bfloat16_products_are_rounded_once(case: str, shape: tuple[int, int, int, int]) -> None:
    function, formula = CASES[case]
    rounded = [one.astype(jnp.bfloat16) for one in arrays(*shapes_of(case, *shape))]
    *operands, cotangent = rounded
    found = jax.jit(lambda *args: pulled(function, list(args[:-1]), args[-1]))(*rounded)
    wide = [one.astype(jnp.float32) for one in rounded]
    expected = pulled(formula, wide[:-1], wide[-1])
    assert [one.dtype for one in found[1:]] == [one.dtype for one in operands]
    assert found[0].dtype == (jnp.float32 if case == "scores" else jnp.bfloat16)
    # A single rounding changes a value by up to half a unit in the last of bfloat16's eight bits.
    # `affine` also rounds its product before adding the bias.
    added = jnp.abs(wide[2]).max() if case in ("affine", "rows") else None
    for number, (one, exact) in enumerate(zip(found, expected, strict=True)):
        rounding = jnp.abs(exact)
        if number == 0 and added is not None:
            rounding = rounding + jnp.abs(exact) + added
        bound = 2**-8 * rounding + 1e-6 * jnp.abs(exact).max()
        assert bool(jnp.all(jnp.abs(one.astype(jnp.float32) - exact) <= bound)), number


def test_no_float32_gradient_of_an_affine_map_contracts_two_dims() -> None:
    x, kernel, bias = arrays((2, 3, 5), (5, 7), (7,))

    def contracted(function: Any) -> list[int]:
        def loss(x: jax.Array, kernel: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(function(x, kernel, bias)))

        text = jax.jit(jax.grad(loss, (0, 1))).lower(x, kernel).as_text()
        dims = re.findall(r"contracting_dims = \[([\d, ]*)\]", text)
        return [len(one.split(",")) for one in dims]

    assert contracted(affine) == [1, 1, 1]
    # `affine` avoids contracting two dims.
    assert 2 in contracted(lambda x, kernel, bias: x @ kernel + bias)


@pytest.mark.parametrize("case", CASES)
def test_only_cpus_compute_bfloat16_products_in_float32(case: str) -> None:
    function, _ = CASES[case]
    *operands, cotangent = (
        one.astype(jnp.bfloat16) for one in arrays(*shapes_of(case, 2, 16, 2, 8))
    )
    traced = jax.jit(lambda *args: pulled(function, list(args), cotangent)).trace(*operands)

    def results(platform: str) -> list[str]:
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return re.findall(r"dot_general .*-> tensor<[\dx]*(\w+)>", text)

    assert results("cpu") == ["f32"] * 3
    # A softmax needs float32 scores on all platforms.
    assert results("tpu") == ["f32" if case == "scores" else "bf16", "bf16", "bf16"]


def test_logits_and_their_gradients_match_the_formula() -> None:
    x, table, bias = arrays((6, 5), (11, 5), (11,))
    assert_allclose(affine_float32(x, table, bias), x @ table.T + bias, rtol=0, atol=1e-5)
    check_grads(affine_float32, (x, table, bias), order=1, modes=["rev"], atol=1e-2, rtol=1e-2)

    def loss(function: Any) -> Any:
        return lambda *args: jnp.sum(jnp.sin(function(*args)))

    found = jax.grad(loss(affine_float32), (0, 1, 2))(x, table, bias)
    expected = jax.grad(loss(lambda x, t, b: x @ t.T + b), (0, 1, 2))(x, table, bias)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=0, atol=1e-5)


def test_the_bias_gradient_of_bfloat16_logits_is_accumulated_in_float32() -> None:
    x, table, bias, cotangent = arrays((4096, 8), (3, 8), (3,), (4096, 3))
    _, pull = jax.vjp(affine_float32, x.astype(jnp.bfloat16), table.astype(jnp.bfloat16), bias)
    cotangent = jnp.abs(cotangent)
    to_x, to_table, to_bias = pull(cotangent)
    assert (to_x.dtype, to_table.dtype) == (jnp.bfloat16, jnp.bfloat16)
    assert to_bias.dtype == jnp.float32
    rounded = np.asarray(cotangent.astype(jnp.bfloat16), np.float64)
    # In bfloat16, a sum of 4,096 terms would stop growing at a few hundred.
    assert_allclose(to_bias, rounded.sum(axis=0), rtol=1e-5)
    assert_array_equal(jnp.isfinite(to_x), True)


@pytest.mark.parametrize("classes", [2, 8, 13])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_logits_are_the_same_on_gpus(dtype: str, classes: int) -> None:
    x, table, cotangent = (
        one.astype(dtype) for one in arrays((640, 6), (classes, 6), (640, classes))
    )
    found = products._gradients_with_sum(products._rounded_table_gradient, x, table, cotangent)
    wide = [torch.tensor(np.asarray(one, np.float64)) for one in (x, table, cotangent)]
    expected = wide[2] @ wide[1], wide[2].T @ wide[0], wide[2].sum(dim=0)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=2**-8 if one.dtype == jnp.bfloat16 else 1e-5, atol=1e-4)
    assert found[2].dtype == jnp.float32


@pytest.mark.parametrize("divided", [(), ("batch",), ("batch", "vocab")], ids=str)
def test_only_gpus_with_all_classes_pad_the_gradient_of_logits(divided: tuple[str, ...]) -> None:
    x, table, bias, cotangent = arrays((6, 5), (13, 5), (13,), (6, 13))

    def gradients(*operands: jax.Array) -> Any:
        with use_layout(Layout(lambda x, axes: x, lambda *args: None, divided.__contains__)):
            return jax.vjp(affine_float32, *operands)[1](cotangent)

    for platform in ("cpu", "tpu", "cuda"):
        traced = jax.jit(gradients).trace(x, table, bias)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        padded = platform == "cuda" and "vocab" not in divided
        assert ("tensor<6x16xf32>" in text) == padded, platform


def test_gradients_of_float32_parameters_are_not_rounded_on_a_cpu() -> None:
    x, kernel, bias, cotangent = arrays((2, 16, 8), (8, 4), (4,), (2, 16, 4))
    narrow = x.astype(jnp.bfloat16), cotangent.astype(jnp.bfloat16)
    value, pull = jax.vjp(affine, narrow[0], kernel, bias)
    found = jax.jit(pull)(narrow[1])
    assert [one.dtype for one in (value, *found)] == [jnp.bfloat16] * 2 + [jnp.float32] * 2
    rows, outer = (np.asarray(one, np.float64).reshape(32, -1) for one in narrow)
    assert_allclose(found[1], rows.T @ outer, rtol=0, atol=1e-5)
    assert_allclose(found[2], outer.sum(axis=0), rtol=0, atol=1e-5)


def test_only_tpus_multiply_ones_to_sum_a_bias_gradient() -> None:
    x, kernel, bias, cotangent = arrays((3, 5, 4), (4, 6), (6,), (3, 5, 6))

    def gradient(x: jax.Array, kernel: jax.Array, bias: jax.Array, cotangent: Any) -> jax.Array:
        _, pull = jax.vjp(
            lambda *args: affine(*args, AffineOptions(multiply_ones=True)), x, kernel, bias
        )
        return pull(cotangent)[2]

    for dtype, platforms in (("bfloat16", ("tpu",)), ("float32", ())):
        operands = (x.astype(dtype), kernel, bias, cotangent.astype(dtype))
        for platform in ("tpu", "cuda", "cpu"):
            traced = jax.jit(gradient).trace(*operands)
            text = traced.lower(lowering_platforms=(platform,)).as_text()
            assert ("dot_general" in text) == (platform in platforms), (dtype, platform)
            assert ("stablehlo.reduce" in text) == (platform not in platforms), (dtype, platform)


@pytest.mark.parametrize("shape", [(4096, 3), (8, 512, 3)])
def test_a_product_with_ones_is_summed_in_float32(shape: tuple[int, ...]) -> None:
    rows = arrays(shape)[0].astype(jnp.bfloat16)
    found = products.multiplied_sum_of_rows(rows, jnp.dtype(jnp.float32))
    exact = np.asarray(rows, np.float64).reshape(-1, 3).sum(axis=0)
    assert_allclose(found, exact, rtol=1e-5)
