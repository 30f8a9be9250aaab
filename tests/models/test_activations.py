"""Compare GELU and its gradient, including the tails, with PyTorch in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bert_jax.models.activations import activation_function

POINTS = np.concatenate([np.linspace(-12, 12, 4801), [-1e4, -40.0, 0.0, 40.0, 1e4]])
APPROXIMATION = {"gelu": "none", "gelu_tanh": "tanh"}


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
    words = [sys.executable, "-c", PROGRAM, str(points), str(results), *APPROXIMATION]
    subprocess.run(words, env=environment, check=True)
    return dict(np.load(results))


@pytest.fixture(params=list(APPROXIMATION))
def computed(request, all_computed) -> tuple[str, dict[str, np.ndarray]]:
    """Return (name, results), where `results` holds the activation's values and slopes."""
    start = f"{request.param}_"
    kinds = [f"{dtype}_{what}" for dtype in ("float32", "bfloat16") for what in ("value", "slope")]
    return request.param, {kind: all_computed[start + kind] for kind in kinds}


def expected(name: str, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = torch.from_numpy(points).requires_grad_()
    y = torch.nn.functional.gelu(x, approximate=APPROXIMATION[name])
    y.sum().backward()
    return y.detach().numpy(), x.grad.numpy()


def test_values_and_gradients_match_pytorch(computed) -> None:
    name, results = computed
    value, slope = expected(name, POINTS)
    assert_allclose(results["float32_value"], value, rtol=1e-6, atol=1e-6)
    # In the left tail, 1 + tanh has few significant digits (it is a small multiple of 6e-8), and
    # its error is multiplied by inner slopes of up to 5 (at x = -5).
    assert_allclose(results["float32_slope"], slope, rtol=0, atol=5e-6)


def test_bfloat16_is_rounded_once(computed) -> None:
    name, results = computed
    near = slice(4801)  # The function is nonlinear at these inputs.
    x = jnp.asarray(POINTS, jnp.bfloat16)[near]
    value, slope = expected(name, np.asarray(x, np.float64))
    # Rounding to 8 significant bits causes relative errors of up to 2^-9; in float32, the tails are
    # off by 1e-6.
    assert_allclose(results["bfloat16_value"][near], value, rtol=2**-8, atol=1e-6)
    assert_allclose(results["bfloat16_slope"][near], slope, rtol=2**-8, atol=5e-6)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_the_backward_pass_keeps_only_the_input(name: str) -> None:
    x = jnp.ones((3, 5))
    _, pull = jax.vjp(activation_function(name), x)
    kept = [leaf for leaf in jax.tree.leaves(pull) if jnp.ndim(leaf)]
    assert [leaf.shape for leaf in kept] == [x.shape]
