"""Compare the interpreted kernels for dropout, residual connections and norms with PyTorch."""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.dropout import keep_mask
from bert_jax.models.dropout_add_norm import dropout_add_and_norm, dropout_add_norm
from bert_jax.models.interpreter import interpreted
from bert_jax.models.norms import LayerNorm, Norm, RMSNorm, norm_layer
from bert_jax.models.options import NormBackend
from bert_jax.pretraining.step_timing import random_batch
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import total_loss
from bert_jax.training.sharding import MeshConfig, layout, make_mesh, named_sharding

EPSILON = 1e-5
KEY = jax.random.key(7)
# JAX 0.12 needs to know the GPU for which it lowers a kernel.
H200 = AbstractMesh((), (), abstract_device=AbstractDevice("NVIDIA H200", 132, "gpu"))


def draw(shape: tuple[int, ...], dtype: Any = jnp.float32) -> dict[str, jax.Array]:
    """Return inputs with a mean of 0.5, cotangents of their sum and its norm, and parameters."""
    rng = np.random.default_rng(0)
    x, update = (0.5 + rng.standard_normal((2, *shape))).astype(dtype)
    to_sum, to_norm = rng.standard_normal((2, *shape)).astype(dtype)
    scale, bias = (1 + 0.2 * rng.standard_normal((2, shape[-1]))).astype(np.float32)
    named = dict(x=x, update=update, scale=scale, bias=bias, to_sum=to_sum, to_norm=to_norm)
    return {name: jnp.asarray(array) for name, array in named.items()}


def norm_of(kind: str, dim: int, dtype: str, scale: jax.Array, bias: jax.Array) -> Norm:
    """Return a norm with these parameters (`bias` only for the kind "layer")."""
    config = EncoderConfig(
        norm_kind="rms" if kind == "rms" else "layer",
        norm_bias=kind == "layer",
        layer_norm_epsilon=EPSILON,
    )
    norm = norm_layer(dim, config, ComputeConfig(dtype=dtype), nnx.Rngs(0))  # type: ignore[arg-type]
    assert isinstance(norm, RMSNorm if kind == "rms" else LayerNorm)
    norm.scale = nnx.Param(scale)
    if kind == "layer":
        norm.bias = nnx.Param(bias)
    return norm


def pull(
    arrays: dict[str, jax.Array], kind: str, rate: float, backend: NormBackend, with_sum: bool
) -> list[jax.Array]:
    """Return the sum (if `with_sum`), its norm, and the gradients of inputs and parameters."""
    dim, dtype = arrays["x"].shape[-1], arrays["x"].dtype.name

    def call(x: jax.Array, update: jax.Array, scale: jax.Array, bias: jax.Array) -> Any:
        norm = norm_of(kind, dim, dtype, scale, bias)
        function = dropout_add_and_norm if with_sum else dropout_add_norm
        return function(x, update, rate, KEY, norm, backend)

    names = ("x", "update", "scale", "bias")
    result, backward = jax.vjp(call, *(arrays[name] for name in names))
    if not with_sum:
        return [result, *backward(arrays["to_norm"])]
    return [*result, *backward((arrays["to_sum"], arrays["to_norm"]))]


def pulled(*arguments: Any) -> list[np.ndarray]:
    """Return the result of `pull` in the interpreter, in float32."""
    arrays, *others = arguments
    with interpreted():
        results = jax.jit(lambda arrays: pull(arrays, *others))(arrays)
    return [np.asarray(result, np.float32) for result in results]


def in_pytorch(
    arrays: dict[str, jax.Array], kind: str, rate: float, with_sum: bool
) -> list[np.ndarray]:
    """Return the same values as `pull`, computed by PyTorch in float64."""
    wide = {name: torch.tensor(np.asarray(array, np.float64)) for name, array in arrays.items()}
    inputs = [wide[name].requires_grad_() for name in ("x", "update", "scale", "bias")]
    x, update, scale, bias = inputs
    kept = torch.tensor(np.array(keep_mask(KEY, rate, x.shape))) if rate else torch.tensor(True)
    total = x + update * kept / (1 - rate)
    if kind == "rms":
        normed = torch.nn.functional.rms_norm(total, scale.shape, scale, EPSILON)
    else:
        used = bias if kind == "layer" else None
        normed = torch.nn.functional.layer_norm(total, scale.shape, scale, used, EPSILON)
    outputs, cotangents = [normed], [wide["to_norm"]]
    if with_sum:
        outputs, cotangents = [total, normed], [wide["to_sum"], wide["to_norm"]]
    gradients = torch.autograd.grad(
        outputs, inputs, cotangents, allow_unused=True, materialize_grads=True
    )
    return [each.detach().numpy() for each in (*outputs, *gradients)]


@pytest.mark.parametrize(
    ("shape", "kind", "rate", "with_sum"),
    [
        # Vectors of 64, 768 and 1,024 elements consist of one, three and one parts. Blocks have 16,
        # 4 and 4 vectors, so the last block is not full.
        ((3, 7, 64), "layer", 0.1, False),
        ((3, 7, 64), "layer without bias", 0.5, True),
        ((1, 1, 64), "rms", 0.1, True),
        ((3, 5, 768), "layer", 0.1, False),
        ((1, 5, 1024), "rms", 0.0, False),
        # In the backward pass, a block adds up several groups of vectors.
        ((67, 127, 64), "layer", 0.1, True),
    ],
)
def test_results_and_gradients_equal_pytorchs(
    shape: tuple[int, ...], kind: str, rate: float, with_sum: bool
) -> None:
    arrays = draw(shape)
    expected = in_pytorch(arrays, kind, rate, with_sum)
    for found, exact in zip(pulled(arrays, kind, rate, "triton", with_sum), expected, strict=True):
        # Sums over all tokens have a larger error.
        assert_allclose(found, exact, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(exact).max() / 10))


@pytest.mark.parametrize("kind", ["layer", "rms"])
def test_bfloat16_results_are_rounded_as_without_the_kernel(kind: str) -> None:
    arrays = draw((3, 21, 192), jnp.bfloat16)
    found = pulled(arrays, kind, 0.1, "triton", True)
    # Without jax.jit, the result of every operation is rounded.
    expected = [np.asarray(a, np.float32) for a in pull(arrays, kind, 0.1, "xla", True)]
    assert_array_equal(found[0], expected[0])  # Compare the sums.
    for index in (1, 2, 3):
        # Sums in another order may move a number to the other side of a rounding boundary.
        assert np.mean(found[index] != expected[index]) < 0.01
        assert_allclose(found[index], expected[index], rtol=2**-7, atol=2**-7)
    for index in (4, 5):
        assert_allclose(found[index], expected[index], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rate", [0.1, 0.7])
def test_the_kernels_drop_the_elements_of_the_mask(rate: float) -> None:
    shape = (5, 9, 128)
    ones = dict.fromkeys(("update", "scale", "bias", "to_sum", "to_norm"), jnp.ones(shape))
    arrays = ones | {"x": jnp.zeros(shape), "scale": jnp.ones(128), "bias": jnp.zeros(128)}
    total, _, _, to_update, *_ = pulled(arrays, "layer", rate, "triton", True)
    kept = np.asarray(keep_mask(KEY, rate, shape))
    assert_array_equal(total != 0, kept)
    assert_array_equal(to_update != 0, kept)


def test_rows_are_split_over_the_devices_of_a_mesh() -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    arrays = draw((8, 3, 64))
    place = named_sharding((8, 3, 64), ("batch", None, None), mesh)
    placed = {
        name: jax.device_put(array, place) if array.ndim == 3 else array
        for name, array in arrays.items()
    }

    def divided(arrays: dict[str, jax.Array]) -> list[jax.Array]:
        with layout(mesh), interpreted():
            return pull(arrays, "layer", 0.1, "triton", True)

    compiled = jax.jit(divided).lower(placed).compile()
    results = compiled(placed)
    for found, exact in zip(results, in_pytorch(arrays, "layer", 0.1, True), strict=True):
        assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    for matrix in results[:4]:
        assert matrix.sharding.is_equivalent_to(place, 3)
    # The only communication between the devices is to sum the gradients of the parameters.
    text = compiled.as_text()
    assert "all-reduce" in text
    assert not any(name in text for name in ("all-gather", "all-to-all", "collective-permute"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "norm_kind": "rms", "norm_bias": False},
        pytest.param({"norm": "pre", "scan_layers": True}, marks=pytest.mark.slow),
        pytest.param({"remat": "dots"}, marks=pytest.mark.slow),
        pytest.param({"norm": "pre", "remat": "layer"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_model_has_the_same_loss_and_gradients_with_the_kernels(changes: dict[str, Any]) -> None:
    changes = dict(changes)
    options = {name: changes.pop(name) for name in ("remat", "scan_layers") if name in changes}
    sizes = dict(vocab_size=40, hidden_dim=64, num_layers=2, num_heads=2, ffn_dim=64)
    config = EncoderConfig(**sizes, max_positions=16, initializer_range=0.2, **changes)  # type: ignore[arg-type]
    compute = ComputeConfig(dtype="float32", attention="xla", **options)
    batch = random_batch(16, 2, rows=3, vocab_size=40, predictions=4, joined=False)
    params = jax.jit(Pretraining(config, compute).definition.init)(jax.random.key(0))
    results = []
    for backend in ("xla", "triton"):
        task = Pretraining(config, dataclasses.replace(compute, norms=backend))

        def loss(params: Any, task: Pretraining = task) -> jax.Array:
            metrics = task.metrics(task.definition.module(params), batch, KEY)
            return total_loss(task, metrics, task.loss_weights(batch))

        with interpreted():
            traced = jax.jit(jax.value_and_grad(loss)).trace(params)
            assert ("dropout_add_norm" in str(traced.jaxpr)) == (backend == "triton")
            results.append(traced.lower().compile()(params))
    (value, gradients), (other, others) = results
    assert_allclose(other, value, rtol=1e-5)
    for name, gradient in gradients.items():
        assert_allclose(others[name], gradient, rtol=0, atol=1e-5, err_msg=name)


# JAX 0.12 issues this warning.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("dim", [64, 768, 2048])
def test_the_kernels_lower_for_a_gpu_and_read_every_matrix_once(dim: int) -> None:
    matrix, vector = (
        jax.ShapeDtypeStruct((2, 32, dim), jnp.bfloat16),
        jax.ShapeDtypeStruct((dim,), jnp.float32),
    )
    names = dict(x=matrix, update=matrix, scale=vector, bias=vector, to_sum=matrix, to_norm=matrix)
    call = jax.jit(partial(pull, kind="layer", rate=0.1, backend="triton", with_sum=False))
    with jax.sharding.use_abstract_mesh(H200):
        text = call.trace(names).lower(lowering_platforms=("cuda",)).as_text()
    kernels = [line for line in text.splitlines() if re.search(r"custom_call @\S*triton", line)]
    types = [line.rsplit(" : ", 1)[1] for line in kernels]
    assert [each.count(f"tensor<64x{dim}xbf16>") for each in types] == [4, 4]
    assert not any("i1>" in each for each in types)


def test_evaluation_does_not_use_the_kernels() -> None:
    arrays = draw((2, 3, 64))
    norm = norm_of("layer", 64, "float32", arrays["scale"], arrays["bias"])
    x, update = arrays["x"], arrays["update"]
    normed = dropout_add_norm(x, update, 0.1, None, norm, "triton")
    assert_array_equal(normed, norm(x + update))
