"""Detect that training has diverged, before a useless state replaces a good one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from bert_jax.training.state import TrainState

_ADVICE = (
    "This state is not saved, and earlier checkpoints are intact. A lower learning rate, a longer "
    "warm-up or gradient clipping usually helps. To resume from an earlier checkpoint than the "
    "newest, add --from-step N"
)
_SHOWN = 3


class TrainingDiverged(ValueError):
    """A metric, or the state after an update, is no longer finite."""


def require_finite_metrics(step: int, values: Mapping[str, float]) -> None:
    """Raise TrainingDiverged if any value is NaN or infinite; name all of them."""
    offending = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if offending:
        raise TrainingDiverged(
            f"step {step}: {', '.join(offending)}, not a finite number. {_ADVICE}"
        )


def require_finite_state(state: TrainState, mesh: Mesh) -> None:
    """Raise TrainingDiverged if a parameter or the optimizer's state is not finite.

    A step's loss is computed before the update, so it may be finite although the update is not.
    All processes must call this together, and all get the same answer.
    """
    paths, leaves = zip(*jax.tree.leaves_with_path((state.params, state.opt_state)), strict=True)
    finite = jax.device_get(_finite_on(mesh)(list(leaves)))
    names = [
        jax.tree_util.keystr(path[1:]) for path, good in zip(paths, finite, strict=True) if not good
    ]
    if names:
        more = f" and {len(names) - _SHOWN} more" if names[_SHOWN:] else ""
        raise TrainingDiverged(
            f"step {int(state.step)}: the loss is finite, but the update is not, in "
            f"{', '.join(names[:_SHOWN])}{more}. {_ADVICE}"
        )


@cache
def _finite_on(mesh: Mesh) -> Callable[[list[jax.Array]], jax.Array]:
    """Return the program that checks many arrays, shared by all runs of a sweep.

    Compiling it for the 612 arrays of a model with 12 layers takes 2 s (CPU, 2 cores, 2026-11).
    """

    def finite(leaves: list[jax.Array]) -> jax.Array:
        return jnp.stack([jnp.isfinite(leaf).all() for leaf in leaves])

    return jax.jit(finite, out_shardings=NamedSharding(mesh, PartitionSpec()))
