"""Test the inputs, dropout and precision of classifier heads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.dropout import keep_mask
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.models.parameters import Parameters

SMALL: dict[str, Any] = dict(
    vocab_size=64, hidden_dim=16, num_layers=2, num_heads=2, ffn_dim=32, max_positions=8
)
FLOAT32 = ComputeConfig(dtype="float32", attention="xla")
TOKENS = np.random.default_rng(0).integers(0, 64, (3, 8), dtype=np.int32)
MASK = (np.arange(8) < np.array([[8], [5], [3]])).astype(np.int32)


def model_of(head: str, dropout: float, encoder_dropout: float) -> ModelConfig:
    rates = dict(hidden_dropout=encoder_dropout, attention_dropout=encoder_dropout)
    return ModelConfig(
        EncoderConfig(**SMALL, **rates), head, labels=("a", "b", "c"), head_dropout=dropout
    )


def perturbed(config: ModelConfig) -> Parameters:
    rng = np.random.default_rng(1)
    fresh = define_model(config, FLOAT32).init(jax.random.key(0))
    return {
        name: jnp.asarray(array + 0.3 * rng.standard_normal(array.shape), jnp.float32)
        for name, array in fresh.items()
    }


def logits_of(
    config: ModelConfig, params: Parameters, key: jax.Array | None, compute: ComputeConfig = FLOAT32
) -> jax.Array:
    model = define_model(config, compute).module(params)
    return model(TOKENS, None, MASK, dropout_key=key)


@pytest.mark.parametrize("head", ["classification", "tagging"])
def test_head_dropout_applies_only_to_the_input_of_the_classifier(head: str) -> None:
    config = model_of(head, 0.5, 0.0)
    params, key = perturbed(config), jax.random.key(3)
    model = define_model(config, FLOAT32).module(params)
    hidden = model.encoder(TOKENS, None, None, MASK, packed=False).hidden
    inputs = model.pooler(hidden) if head == "classification" else hidden
    kept = jnp.where(keep_mask(jax.random.split(key)[1], 0.5, inputs.shape), 2 * inputs, 0)
    weights, bias = params["classifier.kernel"], params["classifier.bias"]
    np.testing.assert_allclose(
        logits_of(config, params, key), kept @ weights + bias, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(
        logits_of(config, params, None), inputs @ weights + bias, rtol=1e-5, atol=1e-5
    )


def test_a_key_determines_the_dropout_of_the_encoder_too() -> None:
    config = model_of("classification", 0.0, 0.5)
    params = perturbed(config)
    first, repeated, other = (
        logits_of(config, params, None if seed is None else jax.random.key(seed))
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(first, repeated)
    assert not np.allclose(first, other)
    assert not np.allclose(first, logits_of(config, params, None))


@pytest.mark.parametrize("head", ["classification", "tagging"])
def test_scores_are_not_rounded_to_the_compute_dtype(head: str) -> None:
    config = model_of(head, 0.0, 0.0)
    logits = logits_of(config, perturbed(config), None, ComputeConfig("bfloat16", attention="xla"))
    assert logits.dtype == jnp.float32
    assert np.mean(logits == logits.astype(jnp.bfloat16).astype(jnp.float32)) < 0.5


def test_head_dropout_is_refused_for_a_head_without_dropout() -> None:
    encoder = EncoderConfig(**SMALL)
    with pytest.raises(ValueError, match="head='span' has no dropout. Set head_dropout=0"):
        ModelConfig(encoder, "span", head_dropout=0.1)
