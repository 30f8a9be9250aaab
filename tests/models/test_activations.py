"""Compare activations and their gradients, including the tails, with PyTorch in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers.activations import ACT2FN

from bert_jax.models.activations import activation_function
from bert_jax.models.options import Activation

POINTS = np.concatenate([np.linspace(-12, 12, 4801), [-1e4, -40.0, 0.0, 40.0, 1e4]])
FUNCTIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "quick_gelu": ACT2FN["quick_gelu"],
}


# The test process compiles with options that favor speed, under which tanh is off by up to 9e-6.
# Compute the functions in a separate process with the default options, as users do.
PROGRAM = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.activations import activation_function

points, file, *names = sys.argv[1:]
results = {}
for name in names:
    function = activation_function(name)
    for dtype in ("float32", "bfloat16"):
        x = jnp.asarray(np.load(points), dtype)
        value, slope = function(x), jax.grad(lambda x: function(x).astype(jnp.float32).sum())(x)
        assert value.dtype == slope.dtype == dtype
        results |= {f"{name}_{dtype}_value": value, f"{name}_{dtype}_slope": slope}
np.savez(file, **{name: np.asarray(array, np.float32) for name, array in results.items()})
"""


@pytest.fixture(scope="module")
def all_computed(tmp_path_factory) -> dict[str, np.ndarray]:
    """Compute all activations and their slopes in both dtypes, with default compiler options."""
    directory = tmp_path_factory.mktemp("activations")
    points, results = directory / "points.npy", directory / "results.npz"
    np.save(points, POINTS)
    environment = {**os.environ, "XLA_FLAGS": ""}
    words = [sys.executable, "-c", PROGRAM, str(points), str(results), *FUNCTIONS]
    subprocess.run(words, env=environment, check=True)
    return dict(np.load(results))


def expected(name: Activation, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = torch.from_numpy(points).requires_grad_()
    y = FUNCTIONS[name](x)
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def test_every_activation_is_compared() -> None:
    assert FUNCTIONS.keys() == set(get_args(Activation))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_match_pytorch(name: Activation, all_computed) -> None:
    value, slope = expected(name, POINTS)
    assert_allclose(all_computed[f"{name}_float32_value"], value, rtol=1e-6, atol=1e-6)
    # In the left tail, 1 + tanh has few significant digits (it is a small multiple of 6e-8), and
    # its error is multiplied by inner slopes of up to 5 (at x = -5).
    assert_allclose(all_computed[f"{name}_float32_slope"], slope, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_bfloat16_is_rounded_once(name: Activation, all_computed) -> None:
    near = slice(4801)  # The function is nonlinear at these inputs.
    x = jnp.asarray(POINTS, jnp.bfloat16)[near]
    value, slope = expected(name, np.asarray(x, np.float64))
    # Rounding to 8 significant bits causes relative errors of up to 2^-9; in float32, the tails are
    # off by 1e-6.
    rounded_value, rounded_slope = (
        all_computed[f"{name}_bfloat16_{kind}"][near] for kind in ("value", "slope")
    )
    assert_allclose(rounded_value, value, rtol=2**-8, atol=1e-6)
    assert_allclose(rounded_slope, slope, rtol=2**-8, atol=5e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_backward_pass_keeps_only_the_input(name: Activation) -> None:
    x = jnp.ones((3, 5))
    _, pull = jax.vjp(activation_function(name), x)
    kept = [leaf for leaf in jax.tree.leaves(pull) if jnp.ndim(leaf)]
    assert [leaf.shape for leaf in kept] == [x.shape]
