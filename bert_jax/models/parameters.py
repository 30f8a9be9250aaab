"""A module as (definition, flat parameters): `{"encoder.layers.0.ffn.up.kernel": array, ...}`.

Everything outside models/ handles parameters in this form: it is what the optimizer, the sharding
table, checkpoints and foreign formats all name parameters by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
from flax import nnx

Parameters = dict[str, jax.Array]
LogicalAxes = dict[str, tuple[str | None, ...]]
ModuleT = TypeVar("ModuleT", bound=nnx.Module)


class _Keys(nnx.RngStream):
    """Flax's stream of keys, counted in Python.

    Its own count is an array. Under a trace every increment asks a tracer for its sharding, which
    it has none of, and the error that says so prints all that was traced before: that took most of
    the 3.3 s of defining 24 layers, which now take 0.35 (jax 0.10.2, flax 0.12.8).
    """

    def __init__(self, key: jax.Array):
        super().__init__(key, tag="params")
        self._drawn = 0

    def __call__(self) -> jax.Array:
        self._drawn += 1
        return jax.random.fold_in(self.key[...], self._drawn - 1)


def _keys(key: jax.Array) -> nnx.Rngs:
    """What modules draw their parameters' keys from."""
    rngs = nnx.Rngs()
    rngs.params = _Keys(key)  # type: ignore[attr-defined]  # the constructor would copy it
    return rngs


@dataclass(frozen=True)
class ModelDefinition(Generic[ModuleT]):
    """How to build a module and what its parameters are called; holds no arrays.

    shapes: name to shape and dtype. logical_axes: name to one logical axis (or None) per dim.
    """

    build: Callable[[nnx.Rngs], ModuleT]
    shapes: dict[str, jax.ShapeDtypeStruct]
    logical_axes: LogicalAxes
    _graph: nnx.GraphDef
    _state: nnx.State
    _shared: bool = False  # whether two places of the module may hold one parameter

    def init(self, key: jax.Array) -> Parameters:
        """Fresh parameters; a pure function of `key`, to be jitted with output shardings."""
        return _flatten(nnx.split(self.build(_keys(key)), graph=self._shared)[1])

    def module(self, parameters: Mapping[str, jax.Array]) -> ModuleT:
        """The module with these parameters.

        Raises:
          ValueError: names are missing or unexpected.
        """
        check_names(parameters, self.shapes)
        leaves, structure = jax.tree.flatten_with_path(self._state)
        values = [parameters[_name(path)] for path, _ in leaves]
        return nnx.merge(self._graph, jax.tree.unflatten(structure, values))


def define(
    build: Callable[[nnx.Rngs], ModuleT], *, replicate_others: bool = False
) -> ModelDefinition[ModuleT]:
    """Return the definition of the module that `build` makes, without computing anything.

    Args:
      replicate_others: whether the module may have parameters without `logical_axes` metadata, of
        which every device holds a whole copy, and use one parameter in several places. This
        package's own modules do neither.

    Raises:
      ValueError: the module has variables other than parameters.
    """
    module = nnx.eval_shape(
        lambda: build(_keys(jax.random.key(0))),
        graph=replicate_others,
        graph_updates=replicate_others,
    )
    graph, state = nnx.split(module, graph=replicate_others)
    shapes = _flatten(state)
    axes: LogicalAxes = {}
    variables = jax.tree.flatten_with_path(state, is_leaf=lambda x: isinstance(x, nnx.Variable))[0]
    for path, variable in variables:
        metadata = variable.get_metadata()
        if not isinstance(variable, nnx.Param):
            raise ValueError(
                f"{_name(path)} is a {type(variable).__name__}; expected only nnx.Param, since "
                "nothing else is trained. Pass random keys to the call instead."
            )
        if replicate_others and "logical_axes" not in metadata:
            metadata = {"logical_axes": (None,) * len(shapes[_name(path)].shape)}
        axes[_name(path)] = metadata["logical_axes"]
    for name, shape in shapes.items():
        assert len(axes[name]) == len(shape.shape), f"{name}: logical axes {axes[name]}, {shape}"
    return ModelDefinition(build, shapes, axes, graph, state, replicate_others)


def check_names(found: Iterable[str], expected: Iterable[str]) -> None:
    """Raises ValueError listing missing (-) and unexpected (+) names unless they agree."""
    missing = [f"  - {name}" for name in sorted(set(expected) - set(found))]
    unexpected = [f"  + {name}" for name in sorted(set(found) - set(expected))]
    if missing or unexpected:
        raise ValueError(
            "the parameters do not fit the model (- missing, + unexpected):\n"
            + "\n".join(missing + unexpected)
        )


def count(shapes: Mapping[str, jax.ShapeDtypeStruct | jax.Array]) -> int:
    """Number of parameters."""
    total = 0
    for value in shapes.values():
        size = 1
        for dim in value.shape:
            size *= dim
        total += size
    return total


def _name(path: tuple) -> str:
    """`encoder.layers.0.ffn.up.kernel` from a key path, without the variable's own level."""
    return ".".join(str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey))


def _flatten(state: nnx.State) -> dict[str, Any]:
    return {_name(path): leaf for path, leaf in jax.tree.flatten_with_path(state)[0]}
