"""Compare the interpreted attention kernel for TPUs with PyTorch's dense attention."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.interpreter import interpreted
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.splash_attention import block_size, splash_attention
from bert_jax.pretraining.step_timing import random_batch
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.sharding import MeshConfig, layout, make_mesh, named_sharding, to_global
from bert_jax.training.state import init_state
from bert_jax.training.step import StepInputs, make_train_step

from .dense_attention import DIM, HEADS, ROWS, arrays, dense_mask, documents_of, torch_attention

WINDOW = 129
# This length gives three blocks, the last of them incomplete, and padding that exceeds the window.
LENGTH = 321


def pull(
    operands: list[jax.Array], ids: Any, packed: bool, window: int | None = WINDOW
) -> list[jax.Array]:
    """Return the output of attention, and its gradients for the cotangent in `operands`."""
    *inputs, cotangent = operands

    def attend(*inputs: jax.Array) -> jax.Array:
        return splash_attention(*inputs, ids, packed, window)

    attended, backward = jax.vjp(attend, *inputs)
    return [attended, *backward(cotangent)]


def pulled(*arguments: Any) -> list[jax.Array]:
    """Compile `pull`, run its Pallas kernels in the interpreter, and return the result."""
    operands, ids, packed, window = arguments
    with interpreted():
        return jax.jit(lambda operands, ids: pull(operands, ids, packed, window))(operands, ids)


@pytest.mark.parametrize(
    ("kind", "length", "window"),
    [
        ("none", LENGTH, WINDOW),
        ("packed", LENGTH, WINDOW),
        ("one", LENGTH, WINDOW),
        ("one", LENGTH, None),
        *(
            pytest.param(kind, length, window, marks=pytest.mark.slow)
            for kind in ("none", "packed", "one")
            for length, window in ((LENGTH, None), (128, None), (1024, 257), (100, 3))
            if (kind, length) != ("one", LENGTH)
        ),
    ],
)
def test_outputs_and_gradients_match_masked_dense_attention(
    kind: str, length: int, window: int | None
) -> None:
    ids, packed = documents_of(kind, length)
    operands = arrays(length)
    expected = torch_attention(dense_mask(ids, packed, length, window), operands)
    for found, exact in zip(pulled(operands, ids, packed, window), expected, strict=True):
        assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_with_only_padding_matches_masked_dense_attention(*, packed: bool) -> None:
    operands = arrays(LENGTH)
    ids = np.stack([np.zeros(LENGTH, np.int32), np.ones(LENGTH, np.int32)])
    mask = dense_mask(ids, packed, LENGTH, WINDOW)
    # If its row has one document, padding sees no key, and PyTorch returns zero for it.
    assert mask[0].any() == packed
    expected = torch_attention(mask, operands)
    for found, exact in zip(pulled(operands, ids, packed, WINDOW), expected, strict=True):
        assert np.isfinite(found).all()
        assert_allclose(found, exact, rtol=0, atol=1e-5)


def test_rows_and_heads_are_split_over_the_devices_of_a_mesh() -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    operands = [jnp.concatenate([x, x[::-1]]) for x in arrays(LENGTH)]
    ids = np.tile(documents_of("packed", LENGTH)[0], (2, 1))
    place = named_sharding(operands[0].shape, ("batch", None, "heads", None), mesh)
    place_ids = named_sharding(ids.shape, ("batch", None), mesh)
    arguments = ([jax.device_put(x, place) for x in operands], jax.device_put(ids, place_ids))

    def divided(operands: list[jax.Array], ids: jax.Array) -> list[jax.Array]:
        with layout(mesh), interpreted():
            return pull(operands, ids, True)

    compiled = jax.jit(divided).lower(*arguments).compile()
    assert not re.findall(r"all-\w+|collective-\w+|reduce-scatter", compiled.as_text())
    expected = torch_attention(
        np.tile(dense_mask(ids[:ROWS], True, LENGTH, WINDOW), (2, 1, 1, 1)), operands
    )
    for found, exact in zip(compiled(*arguments), expected, strict=True):
        assert found.sharding.is_equivalent_to(place, found.ndim)
        assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_heads_that_cannot_be_split_evenly_stay_whole() -> None:
    mesh = make_mesh(MeshConfig(data=2, tensor=4))
    ids, packed = documents_of("one", LENGTH)
    operands = arrays(LENGTH)
    assert HEADS % mesh.shape["tensor"]

    def divided(operands: list[jax.Array]) -> list[jax.Array]:
        with layout(mesh), interpreted():
            return pull(operands, ids, packed)

    expected = torch_attention(dense_mask(ids, packed, LENGTH, WINDOW), operands)
    for found, exact in zip(jax.jit(divided)(operands), expected, strict=True):
        assert_allclose(found, exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("head_dim", "window", "dtype"),
    [
        (64, WINDOW, "bfloat16"),
        (36, None, "float32"),
        *(
            pytest.param(head_dim, window, dtype, marks=pytest.mark.slow)
            for head_dim in (8, 128, 256)
            for window in (WINDOW, None)
            for dtype in ("float32", "bfloat16")
        ),
    ],
)
def test_the_kernel_lowers_for_a_tpu(head_dim: int, window: int | None, dtype: str) -> None:
    shape = jax.ShapeDtypeStruct((ROWS, LENGTH, HEADS, head_dim), dtype)
    ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
    attend = jax.jit(partial(pull, packed=True, window=window))
    exported = jax.export.export(attend, platforms=["tpu"])([shape] * 4, ids)
    text = exported.mlir_module()
    for name in ("fwd_segmented_residuals", "dq_segmented", "dkv_segmented"):
        assert f"splash_mha_{name}" in text
    assert text.count("stablehlo.custom_call @tpu_custom_call") == 3
    # Neither the scores nor a mask of all pairs of tokens is ever stored.
    assert not re.search(r"tensor<(\d+x)*(321x321|384x384)x", text)


def encoder_config(**values: Any) -> EncoderConfig:
    sizes = dict(vocab_size=32, hidden_dim=HEADS * DIM, num_layers=2, num_heads=HEADS, ffn_dim=16)
    options = dict(max_positions=256, positions="rotary", attention_window=9, global_every=2)
    return EncoderConfig(**sizes, **options, initializer_range=0.5, **values)


def test_an_encoder_computes_the_same_with_both_implementations() -> None:
    config = ModelConfig(encoder_config(attention_dropout=0.0), "masked_lm")
    rng = np.random.default_rng(0)
    token_ids = rng.integers(0, 32, (ROWS, 200))
    ids = documents_of("packed", 200)[0]
    results = []
    for attention in ("xla", "splash"):
        definition = define_model(config, ComputeConfig(dtype="float32", attention=attention))

        def loss(params: Any, definition: Any = definition) -> jax.Array:
            encoder = definition.module(params).encoder
            output = encoder(token_ids, document_ids=ids, dropout_key=jax.random.key(0))
            return jnp.sum(jnp.sin(output.hidden))

        with interpreted():
            params = definition.init(jax.random.key(0))
            results.append(jax.jit(jax.value_and_grad(loss))(params))
    (value, gradients), (other, others) = results
    assert_allclose(other, value, rtol=1e-5)
    for name, gradient in gradients.items():
        scale = float(jnp.abs(gradient).max())
        assert_allclose(others[name], gradient, rtol=0, atol=1e-5 * max(1.0, scale), err_msg=name)


def test_attention_dropout_is_refused() -> None:
    config = ModelConfig(encoder_config(attention_dropout=0.1), "masked_lm")
    definition = define_model(config, ComputeConfig(dtype="float32", attention="splash"))
    params = definition.init(jax.random.key(0))
    encoder = definition.module(params).encoder
    with pytest.raises(ValueError, match=r"cannot apply model\.attention_dropout=0\.1"):
        encoder(np.zeros((1, 128), np.int32), dropout_key=jax.random.key(0))


def test_blocks_are_not_much_larger_than_the_window() -> None:
    assert [block_size(length, length) for length in (128, 384, 512, 640, 1024, 8192)] == [
        *(128, 384, 512, 128, 512, 512)
    ]
    assert [block_size(1024, reach) for reach in (0, 64, 128, 300, 600)] == [
        128,
        128,
        128,
        256,
        512,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("axes", [MeshConfig(data=1), MeshConfig(data=2, fsdp=2, tensor=2)])
def test_a_train_step_is_the_same_with_both_implementations(axes: MeshConfig) -> None:
    config = encoder_config(attention_dropout=0.0, hidden_dropout=0.0)
    mesh = make_mesh(axes, jax.devices()[: 8 if axes.tensor == 2 else 1])
    batch = random_batch(200, 3, rows=8, vocab_size=32, predictions=20, joined=False)
    rows, results = np.arange(8), []
    for attention in ("xla", "splash"):
        compute = ComputeConfig(dtype="float32", attention=attention)
        task = Pretraining(config, compute, sentence_pairs="none")
        state = init_state(task.definition, optax.sgd(0.1), mesh, 0)
        train_step = make_train_step(task, optax.sgd(0.1), mesh)
        inputs = StepInputs(np.uint32(0), np.float32(0.1))
        with interpreted():
            state, metrics = train_step(state, to_global(batch, mesh, rows, 8), inputs)
        results.append((state.params, float(metrics["mlm_loss"].sum)))
    (params, loss), (others, other) = results
    assert other == pytest.approx(loss, rel=1e-5)
    for name, value in params.items():
        assert_allclose(others[name], value, rtol=0, atol=1e-5, err_msg=name)
