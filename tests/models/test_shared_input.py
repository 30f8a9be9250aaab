"""Test dense layers that share their input on a mesh, and compare them with PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import Dense, layer_dense
from bert_jax.models.shared_input import apply_each
from bert_jax.training.sharding import MeshConfig, layout, make_mesh

ROWS, LENGTH, DIM = 8, 4, 12


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("outputs", [16, 6])
def test_layers_and_their_gradients_equal_those_of_pytorch(bias: bool, outputs: int) -> None:
    # A dim of size 6 is not divisible by 4, so every device computes all of it.
    mesh = make_mesh(MeshConfig(data=1, fsdp=2, tensor=4))
    config = EncoderConfig(vocab_size=8, hidden_dim=DIM, num_heads=2, dense_bias=bias)
    compute = ComputeConfig(dtype="float32", attention="xla")
    rngs = nnx.Rngs(0)
    layers = [
        layer_dense(DIM, outputs, ("embed", "heads"), config, compute, rngs) for _ in range(2)
    ]
    keys = jax.random.split(jax.random.key(1), 3)
    x = jax.random.normal(keys[0], (ROWS, LENGTH, DIM))
    cotangents = [jax.random.normal(key, (ROWS, LENGTH, outputs)) for key in keys[1:]]

    @jax.jit
    def compiled(
        layers: list[Dense], x: jax.Array
    ) -> tuple[list[jax.Array], tuple[list[Dense], jax.Array]]:
        with layout(mesh):
            results, pull = jax.vjp(lambda *args: apply_each(*args), layers, x)
            return results, pull(cotangents)

    results, (gradients, to_x) = compiled(layers, x)

    wide = torch.tensor(np.asarray(x), requires_grad=True)
    for layer, result, cotangent, gradient in zip(
        layers, results, cotangents, gradients, strict=True
    ):
        kernel = torch.tensor(np.asarray(layer.kernel[...]), requires_grad=True)
        expected = wide @ kernel
        expected.backward(torch.tensor(np.asarray(cotangent)))
        assert_allclose(result, expected.detach(), rtol=1e-5, atol=1e-5)
        assert_allclose(gradient.kernel[...], kernel.grad, rtol=1e-5, atol=1e-5)
        if bias:
            sums = jnp.sum(cotangent, axis=(0, 1))
            assert_allclose(gradient.bias[...], sums, rtol=1e-5, atol=1e-5)
    assert_allclose(to_x, wide.grad, rtol=1e-5, atol=1e-5)
