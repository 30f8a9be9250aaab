"""GELU against PyTorch in float64, values and gradients, tails included."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.activations import activation_function

POINTS = np.concatenate([np.linspace(-12, 12, 4801), [-1e4, -40.0, 0.0, 40.0, 1e4]])
APPROXIMATION = {"gelu": "none", "gelu_tanh": "tanh"}


def expected(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = torch.from_numpy(points).requires_grad_()
    y = torch.nn.functional.gelu(x, approximate=APPROXIMATION[name])
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_values_and_gradients_are_those_of_pytorch(name: str) -> None:
    value, slope = expected(name, POINTS)
    x = jnp.asarray(POINTS, jnp.float32)
    function = activation_function(name)
    assert_allclose(function(x), value, rtol=1e-6, atol=1e-6)
    # In the left tail 1 + tanh is a few units of 6e-8, times an inner slope of up to 5 at x = -5.
    assert_allclose(jax.grad(lambda x: function(x).sum())(x), slope, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_bfloat16_is_rounded_once(name: str) -> None:
    x = jnp.asarray(POINTS[:4801], jnp.bfloat16)
    value, slope = expected(name, np.asarray(x, np.float64))
    function = activation_function(name)
    found = function(x)
    gradient = jax.grad(lambda x: function(x).astype(jnp.float32).sum())(x)
    assert found.dtype == gradient.dtype == jnp.bfloat16
    # Rounding to 8 significant bits errs by up to 2^-9; float32 leaves 1e-6 of the tails.
    assert_allclose(np.asarray(found, np.float64), value, rtol=2**-8, atol=1e-6)
    assert_allclose(np.asarray(gradient, np.float64), slope, rtol=2**-8, atol=5e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_backward_pass_keeps_the_input_alone(name: str) -> None:
    x = jnp.ones((3, 5))
    _, pull = jax.vjp(activation_function(name), x)
    kept = [leaf for leaf in jax.tree.leaves(pull) if jnp.ndim(leaf)]
    assert [leaf.shape for leaf in kept] == [x.shape]
