"""Compare encoders that use the fused attention kernels with one that does not."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.flash_attention import flash_attention
from bert_jax.models.interpreter import interpreted
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.options import AttentionBackend
from bert_jax.pretraining.step_timing import random_batch
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.sharding import MeshConfig, layout, make_mesh, named_sharding, to_global
from bert_jax.training.state import init_state
from bert_jax.training.step import StepInputs, make_train_step

from .dense_attention import ROWS, documents_of

LENGTH = 40
BACKENDS: list[AttentionBackend] = ["flash_gpu", "flash_tpu"]


def encoder_config(**values: Any) -> EncoderConfig:
    sizes = dict(vocab_size=32, hidden_dim=128, num_layers=2, num_heads=2, ffn_dim=16)
    options = dict(max_positions=64, hidden_dropout=0.1, attention_dropout=0.2)
    return EncoderConfig(**{**sizes, **options, "initializer_range": 0.2, **values})


def outputs(
    config: EncoderConfig, compute: ComputeConfig, kind: str, dropout_key: jax.Array | None
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return an encoder's hidden states at the tokens, and the gradients of a function of them."""
    definition = define_model(ModelConfig(config, "masked_lm"), compute)
    token_ids = np.random.default_rng(0).integers(0, 32, (ROWS, LENGTH))
    ids, packed = documents_of(kind, LENGTH)
    # In a row with one document, the outputs for padding differ between implementations.
    weight = np.ones((ROWS, LENGTH, 1)) if packed else (ids != 0)[..., None]

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        encoder = definition.module(params).encoder
        output = encoder(token_ids, document_ids=ids, dropout_key=dropout_key, packed=packed)
        return jnp.sum(jnp.sin(output.hidden) * weight), output.hidden * weight

    with interpreted():
        params = definition.init(jax.random.key(0))
        gradients, hidden = jax.jit(jax.grad(loss, has_aux=True))(params)
    return hidden, gradients


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["packed", "one"])
def test_fused_kernels_change_neither_dropout_nor_results(
    backend: AttentionBackend, kind: str
) -> None:
    config, key = encoder_config(), jax.random.key(3)
    hidden, gradients = outputs(config, ComputeConfig("float32", "xla"), kind, key)
    other, others = outputs(config, ComputeConfig("float32", backend, remat="dots"), kind, key)
    assert_allclose(other, hidden, rtol=0, atol=1e-5)
    # A bias of the keys does not change the probabilities, so its gradient consists only of
    # rounding errors. Compare it with the size of the other gradients.
    largest = max(float(jnp.abs(gradient).max()) for gradient in gradients.values())
    for name, gradient in gradients.items():
        assert_allclose(others[name], gradient, rtol=0, atol=1e-5 * largest, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mesh_does_not_change_which_probabilities_are_dropped(backend: AttentionBackend) -> None:
    batch = random_batch(LENGTH, 3, rows=8, vocab_size=32, predictions=5, joined=False)
    rows, results = np.arange(8), []
    optimizer = optax.sgd(0.1)
    for attention, axes in (("xla", MeshConfig(data=1)), (backend, MeshConfig(2, 2, 2))):
        mesh = make_mesh(axes, jax.devices()[: 8 if axes.tensor == 2 else 1])
        compute = ComputeConfig(dtype="float32", attention=attention)  # type: ignore[arg-type]
        task = Pretraining(encoder_config(), compute, sentence_pairs="none")
        state = init_state(task.definition, optimizer, mesh, 0)
        train_step = make_train_step(task, optimizer, mesh)
        inputs = StepInputs(np.uint32(0), np.float32(0.1))
        with interpreted():
            state, metrics = train_step(state, to_global(batch, mesh, rows, 8), inputs)
        results.append((state.params, float(metrics["mlm_loss"].sum)))
    (params, loss), (others, other) = results
    assert other == pytest.approx(loss, rel=1e-5)
    for name, value in params.items():
        assert_allclose(others[name], value, rtol=0, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_that_the_mesh_does_not_divide_need_no_communication(backend: Any) -> None:
    mesh = make_mesh(MeshConfig(data=2, tensor=3), jax.devices()[:6])
    rng = np.random.default_rng(0)
    operands = list(jnp.asarray(rng.normal(size=(4, ROWS, LENGTH, 2, 64)), jnp.bfloat16))
    ids, packed = documents_of("packed", LENGTH)

    def pull(operands: list[jax.Array]) -> list[jax.Array]:
        def attend(*inputs: jax.Array) -> jax.Array:
            key = jax.random.key(3)
            return flash_attention(backend, *inputs, ids, packed, None, 0.1, key)

        attended, pull = jax.vjp(attend, *operands[:3])
        return [attended, *pull(operands[3])]

    def divided(operands: list[jax.Array]) -> list[jax.Array]:
        with layout(mesh):
            return pull(operands)

    place = named_sharding(operands[0].shape, ("batch", None, "heads", None), mesh)
    placed = [jax.device_put(x, place) for x in operands]
    with interpreted():
        compiled = jax.jit(divided).lower(placed).compile()
        expected = jax.jit(pull)(operands)
    assert not re.findall(r"all-\w+|collective-\w+|reduce-scatter", compiled.as_text())
    for found, exact in zip(compiled(placed), expected, strict=True):
        assert_array_equal(found, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unsupported_head_size_is_refused(backend: AttentionBackend) -> None:
    config = encoder_config(hidden_dim=2 * 36)
    with pytest.raises(
        ValueError, match=rf"^compute\.attention='{backend}' .*\. Set compute\.attention='xla'"
    ):
        outputs(config, ComputeConfig("float32", backend), "packed", None)


def test_the_kernel_for_tpus_lowers_with_the_model() -> None:
    compute = ComputeConfig(dtype="bfloat16", attention="flash_tpu")
    definition = define_model(ModelConfig(encoder_config(max_positions=512), "masked_lm"), compute)
    ids = jax.ShapeDtypeStruct((2, 512), jnp.int32)

    def loss(params: Any, token_ids: jax.Array) -> jax.Array:
        encoder = definition.module(params).encoder
        output = encoder(token_ids, document_ids=token_ids, dropout_key=jax.random.key(0))
        return jnp.sum(output.hidden.astype(jnp.float32))

    exported = jax.export.export(jax.jit(jax.grad(loss)), platforms=["tpu"])(definition.shapes, ids)
    text = exported.mlir_module()
    # Two layers call the same two functions, each of which contains a kernel.
    assert text.count("stablehlo.custom_call @tpu_custom_call") == 2
    assert len(re.findall(r"call @_call_(?:forward|backward)\(", text)) == 4
    assert not re.search(r"tensor<(\d+x)*512x512x", text)
