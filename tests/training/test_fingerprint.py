"""Test that the parameters' fingerprint is the same on every mesh and differs after any change."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings
from bert_jax.training.state import fingerprint

SMALL = EncoderConfig(
    vocab_size=48, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=12
)


def test_the_fingerprint_does_not_depend_on_the_mesh() -> None:
    definition = Pretraining(SMALL, ComputeConfig(dtype="float32", attention="xla")).definition
    params = definition.init(jax.random.key(0))
    expected = fingerprint(params)
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    split = {name: jax.device_put(value, shardings[name]) for name, value in params.items()}
    assert fingerprint(split) == expected
    assert fingerprint(definition.init(jax.random.key(1))) != expected


def test_every_change_changes_the_fingerprint() -> None:
    value = jnp.asarray(np.random.default_rng(0).normal(size=(5, 7)), jnp.float32)
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32)
    flipped = jax.lax.bitcast_convert_type(bits.at[3, 4].set(bits[3, 4] ^ 1), jnp.float32)
    changed = [
        {"a": flipped},
        {"a": value[::-1]},
        {"a": value.T},
        {"a": value.reshape(7, 5)},
        {"a": value.at[0, 0].set(value[0, 1]).at[0, 1].set(value[0, 0])},
        {"b": value},
        {"a": value, "b": jnp.zeros(3)},
    ]
    fingerprints = [fingerprint(params) for params in ({"a": value}, *changed)]
    assert len(set(fingerprints)) == len(fingerprints)
