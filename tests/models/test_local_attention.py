"""Compare local attention with masked dense attention in PyTorch, and test its cost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import ModernBertConfig
from transformers.masking_utils import create_bidirectional_sliding_window_mask
from transformers.models.modernbert import modeling_modernbert

from bert_jax.models.dropout import keep_mask
from bert_jax.models.local_attention import (
    Blocks,
    cudnn_local_attention,
    cut,
    key_bands,
    local_attention,
)
from bert_jax.training.sharding import MeshConfig, make_mesh, named_sharding

from ..commands import REPOSITORY
from .dense_attention import DIM, HEADS, ROWS, arrays, dense_mask, documents_of, torch_attention

# The length is odd, the last of several blocks is incomplete, and padding exceeds the window.
LENGTH, WINDOW = 321, 129


@partial(jax.jit, static_argnames=("packed", "window", "rate", "ops"))
def pulled(
    operands: list[jax.Array],
    ids: Any,
    packed: bool,
    window: int = WINDOW,
    rate: float = 0.0,
    key: jax.Array | None = None,
    ops: Any = "fast",
) -> list[jax.Array]:
    """Return the output of local attention, and its gradients for the cotangent in `operands`."""
    *inputs, cotangent = operands

    def attend(*inputs: jax.Array) -> jax.Array:
        return local_attention(*inputs, ids, packed, window, rate, key, ops)

    attended, pull = jax.vjp(attend, *inputs)
    return [attended, *pull(cotangent)]


@pytest.mark.parametrize("kind", ["none", "packed", "one"])
@pytest.mark.parametrize(
    ("length", "window"), [(7, 3), (130, 129), (200, 401), (LENGTH, WINDOW), (256, 1), (403, 193)]
)
def test_outputs_and_gradients_match_masked_dense_attention(
    kind: str, length: int, window: int
) -> None:
    ids, packed = documents_of(kind, length)
    operands = arrays(length)
    mask = dense_mask(ids, packed, length, window)
    # Padding that cannot attend to any key is included: both libraries return zero for it.
    distant = kind == "one" and length - length // 4 - 1 > window // 2
    assert distant == (not mask.any(axis=-1).all())
    expected = torch_attention(mask, operands)
    for found, exact in zip(pulled(operands, ids, packed, window), expected, strict=True):
        assert_allclose(found, exact, rtol=0, atol=1e-5)


def test_padding_matches_modernbert() -> None:
    """Check that padding attends to the tokens in its window, as in transformers' eager mode."""
    ids, _ = documents_of("one", LENGTH)
    query, key, value, _ = arrays(LENGTH)
    config = ModernBertConfig(local_attention=WINDOW - 1, attn_implementation="eager")
    mask = create_bidirectional_sliding_window_mask(
        config=config,
        inputs_embeds=torch.zeros(ROWS, LENGTH, 1),
        attention_mask=torch.from_numpy(np.array(ids)),
    )
    inputs = [torch.from_numpy(np.array(x)).transpose(1, 2) for x in (query, key, value)]
    expected, _ = modeling_modernbert.eager_attention_forward(
        torch.nn.Module(), *inputs, mask, scaling=DIM**-0.5
    )
    found = np.asarray(local_attention(query, key, value, ids, False, WINDOW, 0.0, None))
    seen = (mask == 0).any(dim=-1)[:, 0].numpy()
    padding = ids == 0
    assert (seen & padding).any() and not seen[padding].all() and seen[~padding].all()
    assert_allclose(found[seen], expected.numpy()[seen], rtol=0, atol=1e-5)
    # For padding that cannot attend to any token, transformers returns the mean of the whole row.
    assert not found[~seen].any() and expected.numpy()[~seen].any()


@pytest.mark.parametrize("kind", ["packed", "one"])
def test_padding_has_no_effect_on_tokens(kind: str) -> None:
    ids, packed = documents_of(kind, LENGTH)
    assert ids is not None
    padding = (ids == 0)[:, :, None, None]
    operands = arrays(LENGTH)
    garbage = [jnp.where(padding, 1e4, x) for x in operands]
    # In a row with one document, padding near tokens attends to them, so its cotangents do affect
    # the tokens' gradients. Therefore, set these cotangents to zero. In a packed row, padding never
    # attends to tokens.
    mask = dense_mask(ids, packed, LENGTH, WINDOW)
    tokens = (ids != 0)[:, None, None, :]
    sees_tokens = (mask & tokens).any(axis=-1)[:, 0, :, None, None]
    for one in (operands, garbage):
        one[3] = jnp.where(padding & sees_tokens, 0, one[3])
    expected = pulled(operands, ids, packed)
    found = pulled(garbage, ids, packed)
    assert padding.any() and (padding & ~sees_tokens).any()
    for one, other in zip(found, expected, strict=True):
        assert np.isfinite(one).all()
        assert_array_equal(jnp.where(padding, 0, one), jnp.where(padding, 0, other))


def test_a_row_with_only_padding_is_finite() -> None:
    operands = arrays(LENGTH)
    ids = np.stack([np.zeros(LENGTH, np.int32), np.ones(LENGTH, np.int32)])
    for packed in (True, False):
        for result in pulled(operands, ids, packed):
            assert np.isfinite(result).all()
            assert packed or not result[0].any()
            assert np.asarray(result[1]).any()


def test_the_blocks_cover_the_row_and_never_cost_more_than_one_block() -> None:
    for window in (1, 3, 31, 129, 257):
        for length in range(1, 1200, 7):
            blocks = cut(length, window)
            assert 0 <= blocks.count * blocks.size - length < blocks.size
            assert blocks.overlap in (0, window // 2) and blocks.overlap <= blocks.size
            scores = blocks.count * blocks.size * (blocks.size + 2 * blocks.overlap)
            assert scores <= length * length
            if length <= window:
                assert blocks == Blocks(length, 1, length, 0)
            # cuDNN needs an even number of queries and keys.
            even = cut(length, window, 8)
            assert even.size % 8 == 0 and (even.size + 2 * even.overlap) % 2 == 0


@pytest.mark.parametrize("window", [WINDOW, 2 * LENGTH + 1])
def test_attention_dropout_drops_the_same_visible_keys_as_dense_attention(window: int) -> None:
    ids, packed = documents_of("packed", LENGTH)
    rate, shape = 0.25, (ROWS, LENGTH, HEADS, LENGTH)
    # If all scores are zero and the values are one-hot, the output is the attention probabilities.
    values = jnp.broadcast_to(jnp.eye(LENGTH)[None, :, None], shape)
    zeros = jnp.zeros(shape)

    @jax.jit
    def attend(key: jax.Array) -> jax.Array:
        return local_attention(zeros, zeros, values, ids, packed, window, rate, key)

    first, repeated, other = (np.asarray(attend(jax.random.key(seed))) for seed in (0, 0, 1))
    assert_array_equal(first, repeated)
    visible = dense_mask(ids, packed, LENGTH, window)[:, 0, :, None]
    expected = visible / visible.sum(axis=-1, keepdims=True) / (1 - rate)
    assert_allclose(first[first > 0], np.broadcast_to(expected, shape)[first > 0], rtol=1e-6)
    for seed, result in ((0, first), (1, other)):
        kept = keep_mask(jax.random.key(seed), rate, (ROWS, HEADS, LENGTH, LENGTH))
        assert_array_equal(result > 0, visible & np.asarray(kept).swapaxes(1, 2))


def test_sharding_changes_no_result_and_needs_no_communication() -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    operands = [jnp.concatenate([x, x[::-1]]) for x in arrays(LENGTH)]
    ids = np.tile(documents_of("packed", LENGTH)[0], (2, 1))
    place = named_sharding(operands[0].shape, ("batch", None, "heads", None), mesh)
    place_ids = named_sharding(ids.shape, ("batch", None), mesh)
    arguments = ([jax.device_put(x, place) for x in operands], jax.device_put(ids, place_ids))
    options = dict(packed=True, rate=0.1, key=jax.random.key(0))
    compiled = pulled.lower(*arguments, **options).compile()
    assert not re.findall(r"all-\w+|collective-\w+|reduce-scatter", compiled.as_text())
    sharded = compiled(*arguments, key=options["key"])
    for found, expected in zip(sharded, pulled(operands, ids, **options), strict=True):
        assert found.sharding.is_equivalent_to(place, found.ndim)
        assert_allclose(found, expected, rtol=0, atol=1e-6)


def equations(jaxpr: Any) -> Any:
    """Yield all operations in a program, even those in loops and custom derivatives."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=callable):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


def test_bfloat16_matmuls_keep_their_dtype_and_sums_are_in_float32() -> None:
    ids, packed = documents_of("packed", LENGTH)
    operands = arrays(LENGTH, dtype="bfloat16")
    exact = pulled([x.astype(jnp.float32) for x in operands], ids, packed)
    for found, expected in zip(pulled(operands, ids, packed), exact, strict=True):
        assert found.dtype == jnp.bfloat16
        error = np.linalg.norm(found.astype(jnp.float32) - expected)
        assert error < 0.01 * np.linalg.norm(expected)
    jaxpr = jax.make_jaxpr(lambda operands: pulled(operands, ids, packed))(operands).jaxpr
    dtypes: dict[str, set[str]] = {}
    for equation in equations(jaxpr):
        kinds = {str(variable.aval.dtype) for variable in equation.invars}
        dtypes.setdefault(equation.primitive.name, set()).update(kinds)
    assert dtypes["dot_general"] == {"bfloat16"}
    assert dtypes["exp"] == dtypes["reduce_max"] == dtypes["reduce_sum"] == {"float32"}
    assert "bfloat16" not in dtypes["add_any"]


def test_a_token_in_several_bands_has_an_accurate_gradient() -> None:
    blocks = Blocks(12, 3, 4, 4)
    _, pull = jax.vjp(lambda x: key_bands(x, blocks), jnp.zeros((1, 12), jnp.bfloat16))
    cotangent = np.zeros((3, 12), np.float32)
    # Token 5 is in the middle of three bands. In bfloat16, 256 + 1 + 1 would be 256.
    cotangent[0, 9], cotangent[1, 5], cotangent[2, 1] = 256, 1, 1
    (gradient,) = pull(jnp.asarray(cotangent, jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    assert_array_equal(gradient, np.eye(12)[5][None] * 258)


def test_plain_operations_support_forward_mode_and_second_derivatives() -> None:
    ids, packed = documents_of("one", LENGTH)
    query, *rest = arrays(LENGTH)
    tangent = rest.pop()

    def loss(query: jax.Array) -> jax.Array:
        attended = local_attention(query, *rest, ids, packed, WINDOW, 0.0, None, "plain")
        return jnp.sum(jnp.sin(attended))

    @jax.jit
    def derivatives(query: jax.Array) -> Any:
        slope = jax.jvp(loss, (query,), (tangent,))[1]
        forward_over_reverse = jax.jvp(jax.grad(loss), (query,), (tangent,))[1]
        return slope, jnp.vdot(jax.grad(loss)(query), tangent), forward_over_reverse

    slope, expected, curvature = derivatives(query)
    assert_allclose(slope, expected, rtol=1e-4)
    step = 0.05
    gradients = [jax.jit(jax.grad(loss))(query + sign * step * tangent) for sign in (1, -1)]
    measured = (gradients[0] - gradients[1]) / (2 * step)
    assert np.linalg.norm(curvature - measured) < 0.02 * np.linalg.norm(curvature)


@pytest.mark.parametrize("ops", ["fast", "plain"])
def test_scanning_and_rematerialization_do_not_change_the_gradients(ops: Any) -> None:
    ids, packed = documents_of("packed", LENGTH)
    x, key, value, cotangent = arrays(LENGTH)
    dropout_keys = jax.random.split(jax.random.key(0), 2)

    def layer(x: jax.Array, dropout_key: jax.Array) -> tuple[jax.Array, None]:
        return x + local_attention(x, key, value, ids, packed, WINDOW, 0.1, dropout_key, ops), None

    def loss(scan: Callable, layer: Callable) -> Callable[[jax.Array], jax.Array]:
        return lambda x: jnp.vdot(scan(layer, x, dropout_keys)[0], cotangent)

    def unrolled(layer: Callable, x: jax.Array, keys: jax.Array) -> tuple[jax.Array, None]:
        for number in range(len(keys)):
            x, _ = layer(x, keys[number])
        return x, None

    expected = jax.jit(jax.grad(loss(unrolled, layer)))(x)
    found = jax.jit(jax.grad(loss(jax.lax.scan, jax.checkpoint(layer))))(x)
    assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["none", "packed", "one"])
def test_the_arguments_of_the_cudnn_kernel_describe_local_attention(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace the kernel with JAX's own implementation of the same interface."""
    attend = jax.nn.dot_product_attention

    def on_a_cpu(*args: Any, implementation: str, **options: Any) -> jax.Array:
        assert implementation == "cudnn"
        return attend(*args, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", on_a_cpu)
    ids, packed = documents_of(kind, LENGTH)
    *inputs, _ = arrays(LENGTH)
    for window in (WINDOW, 2 * LENGTH + 1):
        attended = jax.jit(lambda *x, w=window: cudnn_local_attention(*x, ids, packed, w))(*inputs)
        expected = pulled([*inputs, inputs[0]], ids, packed, window)[0]
        assert_allclose(attended, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("length", [77, LENGTH])
def test_the_cudnn_kernel_accepts_the_blocks(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the kernel for a GPU, which checks shapes and dtypes without compiling it."""
    kernel = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")
    if not hasattr(kernel, "check_cudnn_version"):
        pytest.skip("this version of JAX detects cuDNN's version differently")
    monkeypatch.setattr(kernel, "check_cudnn_version", lambda: 91_000)
    ids, packed = documents_of("packed", length)
    *inputs, cotangent = arrays(length, dtype="bfloat16")

    def loss(*inputs: jax.Array) -> jax.Array:
        return jnp.vdot(cudnn_local_attention(*inputs, ids, packed, WINDOW), cotangent)

    traced = jax.jit(jax.grad(loss, (0, 1, 2))).trace(*inputs)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    kernels = {"__cudnn$fmhaScaleBiasSoftmax", "__cudnn$fmhaScaleBiasSoftmaxBackward"}
    assert kernels == set(re.findall(r"__cudnn\$\w+", text))


@pytest.mark.slow
def test_memory_and_flops_are_linear_in_the_length() -> None:
    def cost(length: int) -> np.ndarray:
        shape = jax.ShapeDtypeStruct((1, length, 4, 64), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        key = jax.eval_shape(lambda: jax.random.key(0))
        compiled = pulled.lower([shape] * 4, ids, True, WINDOW, 0.1, key).compile()
        memory = compiled.memory_analysis().temp_size_in_bytes
        return np.array([compiled.cost_analysis()["flops"], memory], np.float64)

    costs = [cost(length) for length in (1024, 2048, 4096, 8192)]
    for shorter, longer in zip(costs, costs[1:], strict=False):
        assert_allclose(longer / shorter, 2, rtol=0.02)


@pytest.mark.slow
def test_the_experiment_measures_both_passes(tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    script = REPOSITORY / "experiments/local_attention/run.py"
    words = [script, "--lengths", "300", "900", "--window", "33", "--rounds", "1"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    printed = subprocess.run(
        [sys.executable, *map(str, words), "--output", str(output)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert len(printed.splitlines()) == 2 + 2 * 2
    rows = json.loads(output.read_text())["rows"]
    assert [(row["pass"], row["length"]) for row in rows] == [
        *(("forward", 300), ("forward", 900)),
        *(("step", 300), ("step", 900)),
    ]
    for shorter, longer in ((rows[0], rows[1]), (rows[2], rows[3])):
        growth = {x: longer[x]["memory"] / shorter[x]["memory"] for x in ("local 64", "global")}
        assert growth["local 64"] < 4 < growth["global"]
