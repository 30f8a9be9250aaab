"""Test the encoder options that ALBERT, RoBERTa and DistilBERT use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.encoder import Encoder
from bert_jax.models.parameters import ModelDefinition, Parameters, define
from bert_jax.models.variants import variant

SIZES = dict(vocab_size=50, hidden_dim=16, num_layers=4, num_heads=2, ffn_dim=24, max_positions=12)
FLOAT32 = ComputeConfig(dtype="float32", attention="xla")
TOKENS = np.random.default_rng(0).integers(0, 50, (3, 10))
SEGMENTS = np.repeat([[0] * 4 + [1] * 6], 3, axis=0)


def defined(
    compute: ComputeConfig = FLOAT32, **changes: object
) -> tuple[EncoderConfig, ModelDefinition[Encoder]]:
    config = variant("tiny", **(SIZES | changes))
    return config, define(lambda rngs: Encoder(config, compute, rngs))


def drawn(definition: ModelDefinition[Encoder]) -> Parameters:
    """Return parameters far from their initial values, including the biases and norms."""
    params = definition.init(jax.random.key(0))
    keys = jax.random.split(jax.random.key(1), len(params))
    return {
        name: value + 0.2 * jax.random.normal(key, value.shape)
        for key, (name, value) in zip(keys, params.items(), strict=True)
    }


def states(definition: ModelDefinition[Encoder], params: Parameters) -> jax.Array:
    """Return the hidden states: the embeddings and every layer's output."""
    output = definition.module(params)(TOKENS, SEGMENTS, return_hidden_states=True)
    assert output.hidden_states is not None
    return jnp.stack(output.hidden_states)


@pytest.mark.parametrize(
    ("sharing", "num_groups", "owners"),
    [
        ("none", 1, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("all", 1, [(0, 0)] * 4),
        ("all", 2, [(0, 0), (0, 0), (2, 2), (2, 2)]),
        ("all", 4, [(0, 0), (1, 1), (2, 2), (3, 3)]),
        ("attention", 1, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("ffn", 2, [(0, 0), (1, 0), (2, 2), (3, 2)]),
    ],
)
def test_shared_layers_equal_separate_layers_with_the_same_parameters(sharing, num_groups, owners):
    """Compare shared layers with unshared copies, whose gradients add up to the shared gradient."""
    config, shared = defined(sharing=sharing, num_groups=num_groups)
    _, plain = defined()
    assert [config.parameter_owners(n) for n in range(4)] == owners
    params = drawn(shared)

    def copied(params: Parameters) -> Parameters:
        copies = {n: p for n, p in params.items() if not n.startswith("encoder.layers.")}
        for number, (attention, ffn) in enumerate(owners):
            for owner, part in ((attention, "attention"), (ffn, "ffn")):
                start = f"layers.{owner}.{part}"
                copies |= {
                    f"layers.{number}.{n.split('.', 2)[2]}": p
                    for n, p in params.items()
                    if n.startswith((f"{start}.", f"{start}_norm."))
                }
        return {n: p for n, p in copies.items() if n in plain.shapes}

    assert copied(params).keys() == plain.shapes.keys()
    assert_array_equal(states(shared, params), states(plain, copied(params)))

    def loss(definition: ModelDefinition[Encoder], params: Parameters) -> jax.Array:
        return jnp.sum(jnp.sin(states(definition, params)))

    gradients = jax.grad(lambda p: loss(shared, p))(params)
    expected = jax.grad(lambda p: loss(plain, copied(p)))(params)
    for name, gradient in gradients.items():
        assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_shared_layers_can_be_scanned(num_groups):
    looped = ComputeConfig(dtype="float32", attention="xla", scan_layers=True, remat="layer")
    changes = dict(sharing="all", num_groups=num_groups, hidden_dropout=0.2, attention_dropout=0.2)
    _, plain = defined(**changes)
    _, scanned = defined(looped, **changes)
    params, key = drawn(plain), jax.random.key(5)

    def run(definition: ModelDefinition[Encoder]) -> jax.Array:
        return definition.module(params)(TOKENS, SEGMENTS, dropout_key=key).hidden

    assert_allclose(run(plain), run(scanned), rtol=1e-5, atol=1e-5)


def test_layers_that_share_a_part_cannot_be_scanned():
    compute = ComputeConfig(dtype="float32", attention="xla", scan_layers=True)
    with pytest.raises(ValueError, match="Set compute.scan_layers=False"):
        defined(compute, sharing="ffn")


def test_factorized_embeddings_equal_the_product_of_both_layers():
    """Recompute the embeddings with a 6-feature table and a dense layer from 6 to 16 features."""
    config, definition = defined(embedding_dim=6, num_segments=0)
    params = drawn(definition)
    assert params["embeddings.token"].shape == (50, 6)
    assert params["embeddings.norm.scale"].shape == (6,)
    assert params["embeddings.projection.kernel"].shape == (6, 16)
    rows = np.asarray(params["embeddings.token"])[TOKENS]
    rows = rows + np.asarray(params["embeddings.position"])[:10]
    centred = rows - rows.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + config.layer_norm_epsilon)
    normal = normal * params["embeddings.norm.scale"] + params["embeddings.norm.bias"]
    expected = normal @ params["embeddings.projection.kernel"]
    expected += params["embeddings.projection.bias"]
    assert_allclose(states(definition, params)[0], expected, rtol=1e-4, atol=1e-5)


def test_positions_begin_at_the_offset():
    _, plain = defined()
    config, offset = defined(position_offset=2)
    params = drawn(plain)
    table = params["embeddings.position"]
    moved = params | {"embeddings.position": jnp.concatenate([100 * table[:2], table])}
    assert offset.shapes["embeddings.position"].shape == (14, 16)
    assert_array_equal(states(offset, moved), states(plain, params))
    with pytest.raises(ValueError, match="model.max_positions=12: too small for sequences of 13"):
        offset.module(moved)(np.zeros((1, 13), int))


def test_a_single_segment_is_added_to_all_tokens():
    _, definition = defined(num_segments=1)
    params = drawn(definition)
    zeros = definition.module(params)(TOKENS, np.zeros_like(SEGMENTS)).hidden
    assert_array_equal(definition.module(params)(TOKENS, SEGMENTS).hidden, zeros)
    assert_array_equal(definition.module(params)(TOKENS).hidden, zeros)
