"""Convert a training state to the parts of a checkpoint, and load it from them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from bert_jax.local_paths import local_path
from bert_jax.training.averaging import AveragedState, average_of, with_new_average
from bert_jax.training.checkpoint_checksums import AVERAGE, GUARD, PARAMETERS
from bert_jax.training.checkpoint_parameters import (
    load_parts,
    require_intact_everywhere,
    stored_arrays,
)
from bert_jax.training.divergence import GuardedState, guard_of, unguarded, with_guard_state
from bert_jax.training.state import TrainState

_OPTIMIZER = "optimizer"


def parts_of(state: TrainState) -> dict[str, Any]:
    """Return the parts of a checkpoint of `state`, whose arrays may be abstract."""
    parts: dict[str, Any] = {PARAMETERS: state.params}
    if optimizer := _as_tree(_optimizer_of(state)):  # Orbax cannot save an empty part
        parts[_OPTIMIZER] = optimizer
    if average := average_of(state):
        parts[AVERAGE] = average
    if guard := guard_of(state):
        parts[GUARD] = guard._asdict()
    return parts


def load_state(directory: Path, step: int, abstract: TrainState) -> TrainState:
    """Load the state in another run's checkpoint.

    All processes of a run must call this together.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      abstract: the shapes, dtypes and shardings of the state.

    Raises:
      DamagedCheckpoint: a file has changed since it was saved; the message names the file.
      OSError: the checkpoint is intact but cannot be loaded.
      ValueError: the checkpoint was saved with another optimizer; the message lists the differing
        values.
    """
    directory = local_path(directory).absolute()
    require_intact_everywhere(directory, step)
    return restored(directory, step, abstract)


def restored(directory: Path, step: int, abstract: TrainState) -> TrainState:
    """Return the state in a checkpoint whose files have been verified."""
    checkpoint = directory / str(step)
    parts = parts_of(abstract)
    has_optimizer = (checkpoint / _OPTIMIZER).is_dir()
    stored = stored_arrays(directory, step, _OPTIMIZER) if has_optimizer else {}
    _check_optimizer(directory, stored, parts.get(_OPTIMIZER, {}))
    if not (checkpoint / AVERAGE).is_dir():
        parts.pop(AVERAGE, None)
    if GUARD in parts and not _has_guard(directory, step, parts[GUARD]):
        del parts[GUARD]
    loaded = load_parts(directory, step, parts)
    structure = jax.tree.structure(_optimizer_of(abstract))
    opt_state = jax.tree.unflatten(structure, jax.tree.leaves(loaded.get(_OPTIMIZER)))
    number = jax.device_put(jax.numpy.asarray(step, abstract.step.dtype), abstract.step.sharding)
    if average_of(abstract) is not None:
        opt_state = AveragedState(opt_state, loaded.get(AVERAGE, {}))
    if isinstance(abstract.opt_state, GuardedState):
        opt_state = with_guard_state(opt_state, abstract.opt_state, loaded.get(GUARD))
    state = TrainState(number, loaded[PARAMETERS], opt_state)
    # If the run did not keep an average before, it starts one here.
    return state if AVERAGE in parts else with_new_average(state)


def _has_guard(directory: Path, step: int, guard: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint contains a guard with a window of this size."""
    if not (directory / str(step) / GUARD).is_dir():
        return False
    stored = stored_arrays(directory, step, GUARD)
    return {name: tuple(x.shape) for name, x in stored.items()} == {
        name: tuple(x.shape) for name, x in guard.items()
    }


def _optimizer_of(state: TrainState) -> Any:
    """Return the optimizer's own state, without the average of the parameters."""
    opt_state = unguarded(state.opt_state)
    return opt_state.optimizer if isinstance(opt_state, AveragedState) else opt_state


def _check_optimizer(
    directory: Path, stored: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    lines = [f"  - {name}" for name in sorted(set(stored) - set(expected))]
    lines += [f"  + {name}" for name in sorted(set(expected) - set(stored))]
    if lines:
        raise ValueError(
            f"the checkpoint in {directory} was saved with another optimizer"
            " (- stored, + expected):\n" + "\n".join(lines) + "\n"
            "The optimizer state depends on optimizer.name and on whether clip_norm and "
            "weight_decay are 0. Use the config that the checkpoint was saved with, or another "
            "work_dir. If the config is the same, the checkpoint was saved by an earlier version: "
            "resume the run with that version of bert_jax, or start over in another work_dir."
        )


def _as_tree(opt_state: Any) -> dict[str, Any]:
    """Flatten the optimizer state into a dict, so that checkpoints do not use optax class names."""
    leaves = jax.tree.flatten_with_path(opt_state)[0]
    # Keys start with the leaf's index, so that the leaves keep their order when a dict is restored
    # with sorted keys.
    return {f"{i:05d}{jax.tree_util.keystr(path)}": leaf for i, (path, leaf) in enumerate(leaves)}
