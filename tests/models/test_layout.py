"""Test how parameters that are sharded for storage are gathered, and their gradients summed."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec
from numpy.testing import assert_array_equal

from bert_jax.models.layout import gather, scatter
from bert_jax.training.sharding import MeshConfig, layout, make_mesh

AXES = ("embed", "heads")


def inside(
    mesh_config: MeshConfig, function: Callable[[jax.Array], jax.Array]
) -> jax.stages.Wrapped:
    """Return a jitted function that is traced with the layout of a mesh."""

    def traced(x: jax.Array) -> jax.Array:
        with layout(make_mesh(mesh_config)):
            return function(x)

    return jax.jit(traced)


def test_only_dims_that_are_sharded_for_storage_are_gathered() -> None:
    x = jax.random.normal(jax.random.key(0), (8, 12))
    mesh_config = MeshConfig(data=2, fsdp=2, tensor=2)
    gathered = inside(mesh_config, lambda x: gather(x, jnp.dtype("bfloat16"), AXES))(x)
    assert gathered.sharding.spec == PartitionSpec(None, "tensor")
    assert_array_equal(gathered, x.astype(jnp.bfloat16))
    scattered = inside(mesh_config, lambda x: scatter(x, AXES))(x)
    assert scattered.sharding.spec == PartitionSpec("fsdp", "tensor")
    assert_array_equal(scattered, x)


@pytest.mark.parametrize(
    ("platform", "mesh_config", "count"),
    [
        ("tpu", MeshConfig(fsdp=8), 2),
        ("cuda", MeshConfig(fsdp=8), 1),
        ("cpu", MeshConfig(fsdp=8), 1),
        ("tpu", MeshConfig(tensor=8), 1),
    ],
)
def test_only_tpus_sum_whole_gradients(platform: str, mesh_config: MeshConfig, count: int) -> None:
    traced = inside(mesh_config, lambda x: scatter(x, AXES)).trace(jnp.ones((8, 16)))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("sharding_constraint") == count
