"""Test the table of axes, and how states and batches are laid out on a mesh."""

import math
import re
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.layout import constrain
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import (
    MeshConfig,
    batch_extent,
    batch_sharding,
    layout,
    local_rows,
    make_mesh,
    mesh_axes,
    named_sharding,
    parameter_shardings,
    to_global,
    undivided,
)
from bert_jax.training.state import abstract_state, init_state

CONFIG = EncoderConfig(
    vocab_size=48, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=8
)


@pytest.fixture(scope="module")
def task() -> Pretraining:
    return Pretraining(CONFIG, ComputeConfig(dtype="float32", attention="xla"))


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (MeshConfig(), (8, 1, 1)),
        (MeshConfig(data=2, fsdp=-1), (2, 4, 1)),
        (MeshConfig(data=-1, tensor=4), (2, 1, 4)),
        (MeshConfig(data=2, fsdp=2, tensor=2), (2, 2, 2)),
    ],
)
def test_a_mesh_takes_every_device(config: MeshConfig, shape: tuple[int, ...]) -> None:
    mesh = make_mesh(config)
    assert tuple(mesh.shape.items()) == tuple(zip(("data", "fsdp", "tensor"), shape, strict=True))
    assert batch_extent(mesh) == shape[0] * shape[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": 0}, "every axis needs at least 1 device, or -1 for all remaining ones"),
        ({"data": -2}, "every axis needs at least 1 device, or -1 for all remaining ones"),
        ({"fsdp": -1}, "only one axis may be -1"),
    ],
)
def test_impossible_meshes_are_refused(values: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MeshConfig(**values)


@pytest.mark.parametrize("config", [MeshConfig(tensor=3), MeshConfig(2, 2, 1), MeshConfig(fsdp=16)])
def test_a_mesh_of_another_size_is_refused(config: MeshConfig) -> None:
    with pytest.raises(ValueError, match="does not fit 8 devices: the product of its sizes must"):
        make_mesh(config)


def test_the_table_maps_axes_and_leaves_out_axes_of_one_device() -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    assert mesh_axes(("batch", None, "heads"), mesh) == [("data", "fsdp"), (), ("tensor",)]
    assert mesh_axes(("batch", "vocab"), make_mesh(MeshConfig())) == [("data",), ()]
    assert named_sharding((8, 6), ("vocab", "embed"), mesh).spec == PartitionSpec("tensor", "fsdp")


def test_collisions_and_unknown_axes_raise() -> None:
    mesh = make_mesh(MeshConfig())
    with pytest.raises(AssertionError, match="use a mesh axis twice"):
        mesh_axes(("heads", "ffn"), mesh)
    with pytest.raises(AssertionError, match="use a mesh axis twice"):
        mesh_axes(("batch", "embed"), mesh)
    with pytest.raises(KeyError, match="features"):
        mesh_axes(("features",), mesh)


def test_dims_that_cannot_be_split_evenly_stay_whole_and_are_listed() -> None:
    mesh = make_mesh(MeshConfig(data=2, tensor=4))
    shapes = {
        "token": jax.ShapeDtypeStruct((30_522, 16), np.float32),
        "up": jax.ShapeDtypeStruct((16, 32), np.float32),
    }
    axes = {"token": ("vocab", "embed"), "up": ("embed", "ffn")}
    assert undivided(shapes, axes, mesh) == [
        "token: dim 0, of size 30522, is not divisible by 4 (tensor) and stays whole on every "
        "device"
    ]
    shardings = parameter_shardings(shapes, axes, mesh)
    assert shardings["token"].is_fully_replicated
    assert shardings["up"].shard_shape((16, 32)) == (16, 8)
    assert undivided(shapes, axes, make_mesh(MeshConfig())) == []


def test_every_parameter_of_the_model_is_in_the_table(task: Pretraining) -> None:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    matrices = {n: s for n, s in task.definition.shapes.items() if len(s.shape) == 2}
    for name, shape in matrices.items():
        shards = math.prod(shape.shape) // math.prod(shardings[name].shard_shape(shape.shape))
        small = ("position", "segment", "pooler", "next_sentence", "transform")
        assert shards == (2 if any(word in name for word in small) else 4), name


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_parameters_and_moments_are_created_sharded(task: Pretraining, name: Any) -> None:
    mesh = make_mesh(MeshConfig(data=1, fsdp=4, tensor=2))
    optimizer = make_optimizer(OptimizerConfig(name=name))
    abstract = abstract_state(task.definition, optimizer, mesh)
    state = init_state(task.definition, optimizer, mesh, seed=0)
    jax.tree.map(lambda a, x: _check_placed(a, x), abstract, state)
    shardings = parameter_shardings(task.definition.shapes, task.definition.logical_axes, mesh)
    moments = 0
    for path, leaf in jax.tree.flatten_with_path(state.opt_state)[0]:
        key = getattr(path[-1], "key", None)
        if key in shardings:
            moments += 1
            assert leaf.sharding == shardings[key]
            assert leaf.shape == task.definition.shapes[key].shape
    assert moments == 2 * len(task.definition.shapes)
    kernel = state.params["encoder.layers.0.ffn.up.kernel"]
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(4, 16)}


def _check_placed(abstract: jax.ShapeDtypeStruct, leaf: jax.Array) -> None:
    assert (leaf.shape, leaf.dtype) == (abstract.shape, abstract.dtype)
    assert abstract.sharding is not None and leaf.sharding == abstract.sharding
    for shard in leaf.addressable_shards:
        assert shard.data.shape == abstract.sharding.shard_shape(leaf.shape)


def test_a_seed_gives_the_same_numbers_under_any_mesh(task: Pretraining) -> None:
    optimizer = optax.identity()
    one, many, other = (
        jax.device_get(init_state(task.definition, optimizer, mesh, seed).params)
        for mesh, seed in [
            (make_mesh(MeshConfig(), jax.devices()[:1]), 5),
            (make_mesh(MeshConfig(data=2, fsdp=2, tensor=2)), 5),
            (make_mesh(MeshConfig(), jax.devices()[:1]), 6),
        ]
    )
    for name in one:
        np.testing.assert_array_equal(one[name], many[name], err_msg=name)
    assert (one["pooler.dense.kernel"] != other["pooler.dense.kernel"]).any()


@pytest.mark.parametrize("config", [MeshConfig(), MeshConfig(2, 2, 2), MeshConfig(1, 1, 8)])
def test_a_batch_is_placed_by_rows(config: MeshConfig) -> None:
    mesh = make_mesh(config)
    rows = local_rows(mesh, 16)
    np.testing.assert_array_equal(rows, np.arange(16))
    batch = {
        "ids": np.arange(16 * 3, dtype=np.int32).reshape(16, 3),
        "weights": np.arange(16, dtype=np.float32),
    }
    placed = to_global(batch, mesh, rows, 16)
    for name, array in batch.items():
        np.testing.assert_array_equal(placed[name], array)
        assert placed[name].sharding.is_equivalent_to(batch_sharding(mesh), array.ndim)
        shard = placed[name].addressable_shards[0].data
        assert shard.shape == (16 // batch_extent(mesh), *array.shape[1:])


def test_a_batch_that_does_not_split_is_refused() -> None:
    message = "batch_size=12 is not divisible by the 8 parts that the mesh splits a batch into"
    with pytest.raises(ValueError, match=re.escape(message)):
        local_rows(make_mesh(MeshConfig()), 12)


def test_activations_are_constrained_only_inside_the_layout() -> None:
    mesh = make_mesh(MeshConfig())
    x = np.zeros((16, 3), np.float32)

    def pinned(x: jax.Array) -> jax.Array:
        with layout(mesh):
            return constrain(x, "batch", None)

    assert jax.jit(pinned)(x).sharding.spec == PartitionSpec("data")
    assert constrain(x, "batch", None) is x
