"""What a run carries from step to step, and where it lives on the mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.models.parameters import ModelDefinition, Parameters
from bert_jax.training.sharding import parameter_shardings
from bert_jax.validation import check_seed

T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """Everything a checkpoint must hold; randomness is a function of (seed, step) instead.

    step: int32 scalar, updates made so far. opt_state: of the parameters that learn, alone.
    """

    step: jax.Array
    params: Parameters
    opt_state: optax.OptState


def parameter_key(seed: int) -> jax.Array:
    """The key fresh parameters are drawn with."""
    check_seed(seed)
    return jax.random.fold_in(jax.random.key(seed), 0)


def dropout_key(seed: int | np.uint32, step: jax.Array) -> jax.Array:
    """The key of a step's dropout; shares nothing with `parameter_key`."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)


Learns = Callable[[str], bool]


def everything(name: str) -> bool:
    """Every parameter learns."""
    return True


def learned(params: Mapping[str, T], learns: Learns) -> dict[str, T]:
    """The parameters that learn."""
    return {name: value for name, value in params.items() if learns(name)}


def abstract_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    learns: Learns = everything,
) -> TrainState:
    """The state as shapes, dtypes and shardings; computes nothing.

    Optimizer moments are laid out like the parameters they belong to: left to itself,
    `jit(optimizer.init)` would give every device a whole copy.
    """
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(shape: jax.ShapeDtypeStruct, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    params = {name: place(shape, shardings[name]) for name, shape in definition.shapes.items()}
    opt_state = optax.tree.map_params(
        optimizer,
        place,
        jax.eval_shape(optimizer.init, learned(params, learns)),
        learned(shardings, learns),
        transform_non_params=lambda shape: place(shape, replicated),
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return TrainState(cast(jax.Array, step), cast(Parameters, params), opt_state)


def shardings_of(state: TrainState) -> TrainState:
    """The sharding of every array of an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def init_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    learns: Learns = everything,
) -> TrainState:
    """A fresh state, every array created where it stays; the same numbers under any mesh."""
    return make_init(definition, optimizer, mesh, learns)(parameter_key(seed))


Init = Callable[[jax.Array], TrainState]


def make_init(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    learns: Learns = everything,
) -> Init:
    """Compiles on first call: the key of fresh parameters -> a state, as `init_state`'s."""

    def init(key: jax.Array) -> TrainState:
        params = definition.init(key)
        opt_state = optimizer.init(learned(params, learns))
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state)

    shardings = shardings_of(abstract_state(definition, optimizer, mesh, learns))
    return jax.jit(init, out_shardings=shardings)
