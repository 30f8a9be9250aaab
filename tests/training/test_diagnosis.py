"""Test that, in models made to fail, the first values that are not finite are found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.diagnosis import Diagnose, describe, make_diagnosis
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import parameter_key
from bert_jax.training.step import StepInputs

ROWS, LENGTH, INPUTS = 4, 8, StepInputs(np.uint32(1), np.float32(0.0))


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (
            (
                {"a.layers.10.x": False, "a.layers.9.x": False, "head": False},
                {"0 e": False},
                {},
            ),
            "The first parameters that are not finite are a.layers.9.x, a.layers.10.x, head",
        ),
        (
            ({}, {"0 0010 layer 9 of encoder": False, "0 0002 layer 1 of encoder": False}, {}),
            "In the forward pass, the output of layer 1 of encoder is the first that is not finite",
        ),
        (
            ({}, {"0 0002 layer 1 of encoder": True, "1 the metric mlm_loss": False}, {}),
            "The outputs of all layers are finite, but the metric mlm_loss is not",
        ),
        (
            ({}, {}, {"e.embeddings.t": False, "e.layers.2.b": False, "e.layers.10.k": False}),
            "first gradients that are not finite are those of e.layers.10.k",
        ),
        (({"a": True}, {}, {"a": True}), "all values were finite"),
    ],
)
def test_the_first_value_is_described(flags: Any, text: str) -> None:
    assert text in describe(*flags)


@pytest.fixture(scope="module")
def task() -> Pretraining:
    encoder = EncoderConfig(
        vocab_size=60, hidden_dim=8, num_layers=3, num_heads=2, ffn_dim=8, max_positions=LENGTH
    )
    compute = ComputeConfig(dtype="float32", attention="xla")
    return Pretraining(encoder, compute, sentence_pairs="none")


@pytest.fixture(scope="module")
def diagnosed(task: Pretraining) -> Callable[..., str]:
    """Return a function that diagnoses a step with changed parameters."""
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    rng = np.random.default_rng(0)
    batch = {
        "token_ids": rng.integers(5, 60, (ROWS, LENGTH)).astype(np.int32),
        "segment_ids": np.zeros((ROWS, LENGTH), np.int32),
        "position_ids": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
        "document_ids": np.ones((ROWS, LENGTH), np.int32),
        "masked_positions": np.full((ROWS, 1), 3, np.int32),
        "masked_labels": np.full((ROWS, 1), 7, np.int32),
        "masked_weights": np.ones((ROWS, 1), np.float32),
        "cls_positions": np.zeros((ROWS, 1), np.int32),
    }
    placed = to_global(batch, mesh, local_rows(mesh, ROWS), ROWS)
    params = jax.device_get(jax.jit(task.definition.init)(parameter_key(0)))
    diagnose: Diagnose = make_diagnosis(task, mesh, accumulation_steps=1)

    def diagnosed(**changes: Callable[[np.ndarray], np.ndarray]) -> str:
        changed = dict(params)
        for name, change in changes.items():
            key = next(each for each in params if each.replace(".", "_") == name)
            changed[key] = change(params[key])
        return diagnose(changed, placed, 5, INPUTS)

    return diagnosed


@pytest.mark.slow  # This test compiles a whole step.
def test_planted_values_are_found(diagnosed: Callable[..., str]) -> None:
    assert "all values were finite" in diagnosed()
    text = diagnosed(encoder_layers_1_ffn_up_kernel=lambda x: x * np.float32("nan"))
    assert text == "The first parameters that are not finite are encoder.layers.1.ffn.up.kernel"
    # The product of two large kernels overflows in layer 1.
    text = diagnosed(
        encoder_layers_1_ffn_up_kernel=lambda x: np.full_like(x, 1e30),
        encoder_layers_1_ffn_down_kernel=lambda x: np.full_like(x, 1e30),
        encoder_layers_1_ffn_up_bias=lambda x: np.full_like(x, 1e38),
    )
    assert text == (
        "In the forward pass, the output of layer 1 of encoder is the first that is not finite"
    )
