"""Define the training state: parameters, optimizer state and step, sharded over a mesh."""

from __future__ import annotations

import hashlib
import json
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


def fingerprint(params: Parameters) -> str:
    """Return a SHA-256 hash of the names, shapes and 64-bit checksums of float32 parameters.

    The hash does not depend on how the parameters are split over devices and processes. It
    distinguishes parameters that were trained differently, but does not prevent deliberate
    collisions.
    """
    sums = jax.device_get(jax.jit(lambda params: jax.tree.map(_checksum, params))(params))
    content = {
        name: [list(params[name].shape), *(int(value) for value in values)]
        for name, values in sums.items()
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _checksum(array: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return two checksums of an array.

    Each is a weighted sum of the values' bit patterns, with odd weights that depend on the
    position. The sums are computed modulo 2^32, so they do not depend on the order of addition.
    """
    bits = jax.lax.bitcast_convert_type(array.astype(jnp.float32), jnp.uint32)
    position = jnp.zeros(array.shape, jnp.uint32)
    for dim, size in enumerate(array.shape):
        position = position * jnp.uint32(size) + jax.lax.broadcasted_iota(
            jnp.uint32, array.shape, dim
        )
    # These multipliers are Knuth's and xxHash's, but any large odd numbers would do.
    first, second = (
        jnp.sum(bits * (position * jnp.uint32(factor) | jnp.uint32(1)), dtype=jnp.uint32)
        for factor in (2_654_435_761, 2_246_822_519)
    )
    return first, second


T = TypeVar("T")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The state that a checkpoint contains.

    It does not include random keys, which are a function of (seed, step).

    Attributes:
      step: the number of updates so far, an int32 scalar.
      params: the parameters, keyed by name.
      opt_state: the optimizer state for the trainable parameters.
    """

    step: jax.Array
    params: Parameters
    opt_state: optax.OptState


def parameter_key(seed: int) -> jax.Array:
    """Return the random key for initializing the parameters."""
    check_seed(seed)
    return jax.random.fold_in(jax.random.key(seed), 0)


def dropout_key(seed: int | np.uint32, step: jax.Array) -> jax.Array:
    """Return the random key for a step's dropout, which is independent of `parameter_key`."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 1), step)


IsTrainable = Callable[[str], bool]


def all_trainable(name: str) -> bool:
    """Return True: every parameter is trainable."""
    return True


def trainable_part(params: Mapping[str, T], is_trainable: IsTrainable) -> dict[str, T]:
    """Return only the trainable parameters."""
    return {name: value for name, value in params.items() if is_trainable(name)}


def abstract_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    is_trainable: IsTrainable = all_trainable,
) -> TrainState:
    """Return the state as shapes, dtypes and shardings, without computing anything.

    Optimizer moments are sharded like their parameters. Otherwise, `jit(optimizer.init)` would put
    a full copy of them on every device.

    Args:
      definition: the model.
      optimizer: the optimizer.
      mesh: the device mesh.
      is_trainable: returns whether the parameter with a given name is updated.
    """
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    replicated = NamedSharding(mesh, PartitionSpec())

    def place(shape: Any, sharding: NamedSharding) -> Any:
        if is_masked(shape):
            return shape
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    def is_masked(leaf: Any) -> bool:
        """Return whether a part of the optimizer, such as Muon, skips this parameter."""
        return isinstance(leaf, optax.MaskedNode)

    params = {name: place(shape, shardings[name]) for name, shape in definition.shapes.items()}
    opt_state = optax.tree.map_params(
        optimizer,
        place,
        jax.eval_shape(optimizer.init, trainable_part(params, is_trainable)),
        trainable_part(shardings, is_trainable),
        transform_non_params=lambda shape: place(shape, replicated),
        is_leaf=is_masked,
    )
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return TrainState(cast(jax.Array, step), cast(Parameters, params), opt_state)


def shardings_of(state: TrainState) -> TrainState:
    """Return the sharding of every array in an abstract state."""
    return jax.tree.map(lambda leaf: leaf.sharding, state)


def init_state(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    seed: int,
    is_trainable: IsTrainable = all_trainable,
) -> TrainState:
    """Return a sharded, randomly initialized state whose values are the same on every mesh."""
    return make_init(definition, optimizer, mesh, is_trainable)(parameter_key(seed))


Init = Callable[[jax.Array], TrainState]


def make_init(
    definition: ModelDefinition[Any],
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    is_trainable: IsTrainable = all_trainable,
) -> Init:
    """Return a function from a random key to an initial state, compiled on its first call."""

    def init(key: jax.Array) -> TrainState:
        params = definition.init(key)
        opt_state = optimizer.init(trainable_part(params, is_trainable))
        return TrainState(jnp.zeros((), jnp.int32), params, opt_state)

    shardings = shardings_of(abstract_state(definition, optimizer, mesh, is_trainable))
    return jax.jit(init, out_shardings=shardings)
