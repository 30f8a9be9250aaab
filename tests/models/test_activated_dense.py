"""Compare an activation and a dense layer with PyTorch's, and test what the backward pass keeps."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.activated_dense import activated_dense
from bert_jax.models.activations import gelu
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layers import Dense, layer_dense

BATCH, LENGTH, DIM, INNER = 3, 5, 8, 32


def gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    return gelu(gate) * up


ACTIVATIONS = {"gelu": (gelu, 1), "gated": (gated, 2)}


def make_layer(dtype: str = "float32") -> Dense:
    config = EncoderConfig(vocab_size=8, hidden_dim=DIM, num_heads=2, ffn_dim=INNER)
    compute = ComputeConfig(dtype=dtype, attention="xla")  # type: ignore[arg-type]
    return layer_dense(INNER, DIM, ("ffn", "embed"), config, compute, nnx.Rngs(0))


def make_arguments(count: int) -> list[jax.Array]:
    return list(jax.random.normal(jax.random.key(1), (count, BATCH, LENGTH, INNER)))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_values_and_gradients_equal_those_of_pytorch(name: str) -> None:
    activation, count = ACTIVATIONS[name]
    layer, arguments = make_layer(), make_arguments(count)
    result, pull = jax.vjp(
        lambda layer, *arguments: activated_dense(layer, activation, *arguments), layer, *arguments
    )
    to_layer, *to_arguments = pull(jnp.cos(result))
    tensors = [torch.tensor(np.asarray(x), requires_grad=True) for x in arguments]
    kernel, bias = (
        torch.tensor(np.asarray(x[...]), requires_grad=True) for x in (layer.kernel, layer.bias)
    )
    first = torch.nn.functional.gelu(tensors[0])
    expected = (first if count == 1 else first * tensors[1]) @ kernel + bias
    expected.backward(torch.cos(expected.detach()))
    assert_allclose(result, expected.detach(), atol=1e-5)
    assert_allclose(to_layer.kernel[...], kernel.grad, atol=1e-5)
    assert_allclose(to_layer.bias[...], bias.grad, atol=1e-5)
    for found, tensor in zip(to_arguments, tensors, strict=True):
        assert_allclose(found, tensor.grad, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_result_equals_an_activation_followed_by_a_layer(dtype: str) -> None:
    layer = make_layer(dtype)
    x = make_arguments(1)[0].astype(dtype)

    def results(apply: Callable[[Dense, jax.Array], jax.Array]) -> list[jax.Array]:
        result, pull = jax.vjp(apply, layer, x)
        return jax.tree.leaves((result, pull(jnp.cos(result))))

    found = results(lambda layer, x: activated_dense(layer, gelu, x))
    expected = results(lambda layer, x: layer(gelu(x)))
    for each in zip(found, expected, strict=True):
        assert_array_equal(*each)


def test_only_the_arguments_and_the_parameters_are_kept() -> None:
    layer, arguments = make_layer(), make_arguments(2)
    _, pull = jax.vjp(lambda *args: activated_dense(args[0], gated, *args[1:]), layer, *arguments)
    kept = sorted(leaf.shape for leaf in jax.tree.leaves(pull) if jnp.ndim(leaf))
    assert kept == sorted([(DIM,), (INNER, DIM), *[(BATCH, LENGTH, INNER)] * 2])


@pytest.mark.parametrize(("platform", "barriers"), [("tpu", 1), ("cuda", 1), ("cpu", 0)])
def test_accelerators_recompute_in_the_backward_pass_without_another_product(
    platform: str, barriers: int
) -> None:
    layer, (x,) = make_layer(), make_arguments(1)

    def loss(layer: Dense, x: jax.Array) -> jax.Array:
        return jnp.sum(activated_dense(layer, gelu, x) ** 2)

    traced = jax.jit(jax.grad(loss, (0, 1))).trace(layer, x)
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("optimization_barrier") == barriers
    assert text.count("dot_general") == 3
