"""Compare the logits of all tokens with PyTorch, and test how devices sum the table's gradient."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.layout import Layout, use_layout
from bert_jax.models.token_table import token_logits


def arrays(*shapes: tuple[int, ...]) -> list[jax.Array]:
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_and_their_gradients_match_pytorch(dtype: str, tied: bool) -> None:
    x, table, bias, cotangent = arrays((50, 6), (13, 6), (13,), (50, 13))
    # The operands and the cotangent are exact in bfloat16.
    x, table, cotangent = (jnp.round(one * 8) / 8 for one in (x, table, cotangent))
    logits, pull = jax.vjp(lambda *args: token_logits(*args, tied), x.astype(dtype), table, bias)
    found = pull(cotangent)
    leaves = [
        torch.tensor(np.asarray(one, np.float64), requires_grad=True) for one in (x, table, bias)
    ]
    expected = leaves[0] @ leaves[1].T + leaves[2]
    assert_allclose(logits, expected.detach(), rtol=0, atol=1e-5)
    (expected * torch.tensor(np.asarray(cotangent, np.float64))).sum().backward()
    assert [one.dtype for one in found] == [jnp.dtype(dtype), jnp.float32, jnp.float32]
    tolerances = (2**-8 if dtype == "bfloat16" else 1e-6, 1e-6, 1e-6)
    for one, leaf, tolerance in zip(found, leaves, tolerances, strict=True):
        assert_allclose(one, leaf.grad, rtol=tolerance, atol=1e-5)


@pytest.mark.parametrize(
    ("tied", "divided", "dtype"),
    [
        (True, {"batch"}, "f32"),
        (True, {"batch", "vocab"}, "f32"),
        (True, {"batch", "embed"}, "bf16"),
        (True, set(), "bf16"),
        (False, {"batch"}, "bf16"),
    ],
)
def test_a_matmul_has_the_dtype_in_which_devices_sum_the_gradient(
    tied: bool, divided: set[str], dtype: str
) -> None:
    x, table, bias, cotangent = arrays((6, 5), (16, 5), (16,), (6, 16))

    def gradients(*args: Any) -> Any:
        with use_layout(Layout(lambda x, axes: x, lambda *args: None, divided.__contains__)):
            return jax.vjp(lambda *args: token_logits(*args, tied), *args)[1](cotangent)

    traced = jax.jit(gradients).trace(x.astype(jnp.bfloat16), table, bias)
    for platform in ("tpu", "cuda"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        (found,) = re.findall(r"dot_general .*-> tensor<16x5x(\w+)>", text)
        assert found == dtype, platform
