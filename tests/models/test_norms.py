"""Compare LayerNorm and RMSNorm, and their gradients, with PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.norms import normalize

EPSILON = 1e-5
KINDS = ["layer", "layer without bias", "rms"]


def draw(dim: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return inputs with a large mean, a scale, a bias and a cotangent."""
    rng = np.random.default_rng(0)
    x = 3.0 + rng.standard_normal((4, 40, dim))
    scale, bias = 1 + 0.2 * rng.standard_normal((2, dim))
    return tuple(a.astype(np.float32) for a in (x, scale, bias, rng.standard_normal(x.shape)))


def with_gradients(kind: str, *arrays: Any) -> list[np.ndarray]:
    """Return the result and its gradients with respect to x, the scale and the bias, if any."""
    x, scale, bias, cotangent = (jnp.asarray(array) for array in arrays)
    inputs = (x, scale, bias) if kind == "layer" else (x, scale)

    def call(x: jax.Array, scale: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        return normalize(x, scale, bias, EPSILON, kind != "rms")

    result, pull = jax.vjp(call, *inputs)
    return [np.asarray(a, np.float32) for a in (result, *pull(cotangent.astype(x.dtype)))]


def in_pytorch(kind: str, *arrays: Any) -> list[np.ndarray]:
    """Return the same values as `with_gradients`, computed by PyTorch in float64."""
    x, scale, bias, cotangent = (torch.tensor(np.asarray(a, np.float64)) for a in arrays)
    inputs = [x, scale, bias] if kind == "layer" else [x, scale]
    for each in inputs:
        each.requires_grad_()
    if kind == "rms":
        result = torch.nn.functional.rms_norm(x, scale.shape, scale, EPSILON)
    else:
        result = torch.nn.functional.layer_norm(x, scale.shape, *inputs[1:], eps=EPSILON)
    gradients = torch.autograd.grad(result, inputs, cotangent)
    return [each.detach().numpy() for each in (result, *gradients)]


@pytest.mark.parametrize("kind", KINDS)
def test_results_and_gradients_equal_pytorchs(kind: str) -> None:
    for ours, theirs in zip(with_gradients(kind, *draw()), in_pytorch(kind, *draw()), strict=True):
        assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_inputs_are_normalized_in_float32(kind: str) -> None:
    """Check that only the result and the gradient of x are rounded, but not the parameters."""
    x, scale, bias, cotangent = draw()
    x, cotangent = (jnp.asarray(array, jnp.bfloat16) for array in (x, cotangent))
    ours = with_gradients(kind, x, scale, bias, cotangent)
    theirs = in_pytorch(kind, x, scale, bias, cotangent)
    for index in (0, 1):
        assert_allclose(ours[index], theirs[index], rtol=2**-8, atol=1e-5)
    for index in range(2, len(ours)):
        assert_allclose(ours[index], theirs[index], rtol=1e-5, atol=1e-4)


def test_the_backward_pass_keeps_the_input_and_two_numbers_for_each_vector() -> None:
    x, scale, bias, _ = draw()
    x = jnp.asarray(x, jnp.bfloat16)
    _, pull = jax.vjp(lambda x, *others: normalize(x, *others, EPSILON, True), x, scale, bias)
    kept = {(leaf.shape, leaf.dtype.name) for leaf in jax.tree.leaves(pull)}
    vectors = (4, 40, 1)
    assert {each for each in kept if len(each[0]) == 3} == {
        (x.shape, "bfloat16"),
        (vectors, "float32"),
    }
