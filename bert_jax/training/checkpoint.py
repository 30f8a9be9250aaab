"""Checkpoints: whole or absent, and refused where they do not belong. The only Orbax import."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from orbax.checkpoint import v1 as ocp

from bert_jax.differences import differences
from bert_jax.models.parameters import ModelDefinition, Parameters, check_names
from bert_jax.models.student import TRAINING_ONLY
from bert_jax.training.checkpoint_config import CheckpointConfig, JudgedLater
from bert_jax.training.distributed import agreed
from bert_jax.training.state import TrainState

_WRITE_BYTES = 1 << 28
# Of an array that several devices hold each writes a part, but not of less than this: to cut every
# bias and scale takes longer than to write it. A square kernel of BERT-base is cut 256 times.
_PART_BYTES = 1 << 12


class Checkpointer:
    """The checkpoints of one run, in `directory`; saving goes on behind the training.

    identity: what makes a checkpoint belong to this run (model, corpus, tokenizer, ...), stored
      with each and compared when restoring; plain JSON values, nested dicts allowed.
    judged_later: tells of a step whether its checkpoint stays if it was saved without metrics: that
      of a run that was stopped where an evaluation was due may prove one of the best.
    """

    def __init__(
        self,
        directory: Path,
        config: CheckpointConfig,
        identity: Mapping[str, Any],
        judged_later: Callable[[int], bool] = lambda step: False,
    ):
        self._identity = json.loads(json.dumps(identity))
        self._best_metric = config.best_metric if config.keep_best else None
        self._checkpointer = ocp.training.Checkpointer(
            directory.absolute(),
            save_decision_policy=ocp.training.save_decision_policies.AnySavePolicy([]),
            preservation_policy=_preservation(config, judged_later),
            # A save that was killed left a directory under a temporary name; nothing reads it.
            cleanup_tmp_directories=True,
        )
        # Orbax asks in order to log, in its own thread and on the first process alone. JAX would
        # take the step of that save for where this process is, and all for one it has passed.
        self._checkpointer._manager.reached_preemption = lambda step: False

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the save under way and frees its threads."""
        self._checkpointer.close()

    def latest_step(self) -> int | None:
        """The step of the newest whole checkpoint, None before the first."""
        return _agreed_step(self._checkpointer)

    def latest_was_evaluated(self) -> bool:
        """Whether the newest whole checkpoint was saved with held-out metrics."""
        latest = self._checkpointer.latest
        return bool(agreed(latest is not None and bool(latest.metrics)))

    def save(self, state: TrainState, metrics: Mapping[str, float] | None) -> None:
        """Saves `state` under its own step; returns while the bytes are still being written.

        metrics: the held-out metrics at this step, for `keep_best`; None where not evaluated.

        Raises:
          ValueError: `best_metric` is not among `metrics`.
        """
        if metrics and self._best_metric and self._best_metric not in metrics:
            raise ValueError(
                f"checkpoint.best_metric={self._best_metric!r} is not a held-out metric of this "
                f"run: expected one of {', '.join(sorted(metrics))}; or set checkpoint.keep_best=0"
            )
        context = ocp.Context()
        context.array.saving.min_slice_bytes_for_replica_parallel = _PART_BYTES
        with context:
            self._checkpointer.save_checkpointables_async(
                int(state.step),
                {"params": state.params, "optimizer": _as_tree(state.opt_state)},
                force=True,
                metrics=dict(metrics) if metrics else None,
                custom_metadata={"identity": self._identity},
            )

    def restore(self, abstract: TrainState) -> TrainState:
        """The newest checkpoint, laid out like `abstract`.

        Raises:
          ValueError: it belongs to a different model, corpus, tokenizer or optimizer; says where
            they differ.
        """
        self.check_identity()
        newest = self.latest_step()
        assert newest is not None
        metadata = self._checkpointer.checkpointables_metadata(newest)
        optimizer = _as_tree(abstract.opt_state)
        self._check_optimizer(metadata.metadata["optimizer"], optimizer)
        loaded = self._checkpointer.load_checkpointables(
            newest, {"params": abstract.params, "optimizer": optimizer}
        )
        structure = jax.tree.structure(abstract.opt_state)
        opt_state = jax.tree.unflatten(structure, jax.tree.leaves(loaded["optimizer"]))
        step = jax.device_put(
            jax.numpy.asarray(newest, abstract.step.dtype), abstract.step.sharding
        )
        return TrainState(step, loaded["params"], opt_state)

    def check_identity(self) -> None:
        """Refuses a newest checkpoint of another run.

        Raises:
          ValueError: as `restore`.
        """
        newest = self.latest_step()
        assert newest is not None, "there is no checkpoint yet"
        metadata = self._checkpointer.checkpointables_metadata(newest)
        stored = (metadata.custom_metadata or {}).get("identity", {})
        lines = differences(stored, self._identity)
        if lines:
            raise ValueError(
                f"the checkpoint in {self._checkpointer.directory} belongs to another run "
                "(checkpoint -> this config):\n  " + "\n  ".join(lines) + "\n"
                "Use the config it was written with, or another work_dir"
            )

    def _check_optimizer(self, stored: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
        lines = [f"  - {name}" for name in sorted(set(stored) - set(expected))]
        lines += [f"  + {name}" for name in sorted(set(expected) - set(stored))]
        if lines:
            raise ValueError(
                f"the checkpoint in {self._checkpointer.directory} was written by another optimizer"
                " (- stored, + expected):\n" + "\n".join(lines) + "\n"
                "Its parts follow from optimizer.name and from whether clip_norm and weight_decay "
                "are 0: use the config it was written with, or another work_dir"
            )


def load_parameters(
    directory: Path,
    definition: ModelDefinition[Any],
    shardings: Mapping[str, Any],
    step: int | None = None,
) -> Parameters:
    """The parameters alone of a checkpoint in `directory`: to start from or to use.

    step: None takes the newest. What only the training of a student had (`TRAINING_ONLY`) stays.

    Raises:
      ValueError: no checkpoint of that step, or its parameters do not fit (± names, shapes).
    """
    if not directory.is_dir():
        raise ValueError(f"{directory}: no such directory; expected a run's `checkpoints` folder")
    with ocp.training.Checkpointer(directory.absolute()) as checkpointer:
        # Not each process's own: another job may save a checkpoint while they look.
        step = _agreed_step(checkpointer) if step is None else agreed(step)
        if step is None:
            raise ValueError(f"{directory}: holds no finished checkpoint")
        _check_there(checkpointer, directory, step)
        found = checkpointer.checkpointables_metadata(step).metadata["params"]
        if found is None:
            raise ValueError(f"{directory / str(step)}: damaged: it holds no readable parameters")
        check_names([n for n in found if not n.startswith(TRAINING_ONLY)], definition.shapes)
        for name, expected in definition.shapes.items():
            if tuple(found[name].shape) != tuple(expected.shape):
                raise ValueError(
                    f"{directory}: {name} has shape {tuple(found[name].shape)}, "
                    f"the model expects {tuple(expected.shape)}"
                )
        abstract = {
            name: jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=shardings[name])
            for name, shape in definition.shapes.items()
        }
        context = ocp.Context()
        context.pytree.loading.partial_load = True
        with context:
            return checkpointer.load_checkpointables(step, {"params": abstract})["params"]


def identity_of(directory: Path, step: int) -> Mapping[str, Any]:
    """What the checkpoint of a step belongs to: the `identity` its `Checkpointer` was given.

    Raises:
      ValueError: there is no whole checkpoint of that step; names those that there are.
    """
    with ocp.training.Checkpointer(directory.absolute()) as checkpointer:
        _check_there(checkpointer, directory, step)
        metadata = checkpointer.checkpointables_metadata(step).custom_metadata or {}
        identity: Mapping[str, Any] = metadata.get("identity", {})
        return identity


def saved_run(directory: Path) -> tuple[int, Mapping[str, Any]] | None:
    """The newest whole checkpoint's step and identity; None before the first.

    Of several processes all must ask, and all get the first one's answer: one that goes on may make
    the directory, and a later one that found it would open it, which the first did not, so that
    they would wait for each other at different barriers.
    """
    if not agreed(directory.is_dir()):
        return None
    with ocp.training.Checkpointer(directory.absolute()) as checkpointer:
        step = _agreed_step(checkpointer)
    return None if step is None else (step, identity_of(directory, step))


def newest_step(directory: Path) -> int:
    """The step of the newest whole checkpoint in `directory`. ValueError if there is none."""
    step = None
    if directory.is_dir():  # to open it would make it
        with ocp.training.Checkpointer(directory.absolute()) as checkpointer:
            step = _agreed_step(checkpointer)
    if step is None:
        raise ValueError(f"{directory}: holds no finished checkpoint")
    return step


def whole_steps(directory: Path) -> list[int]:
    """The steps of the whole checkpoints in `directory`, ascending."""
    with ocp.training.Checkpointer(directory.absolute()) as checkpointer:
        return _whole_steps(checkpointer)


def save_parameters(
    directory: Path, params: Mapping[str, np.ndarray], identity: Mapping[str, Any], step: int = 0
) -> None:
    """Saves parameters alone, as the checkpoint of `step` in `directory`; waits for its end.

    No run goes on from it, since none has this `identity`: it is to start from or to use.
    """
    # Nobody changes the arrays meanwhile, so they need not be copied. What is under way to disk is
    # bounded, by no less than the largest array, which is written whole. Compressed, BERT-large
    # would take 7 % less room on disk and 0.8 GB more memory meanwhile.
    largest = max(array.nbytes for array in params.values())
    context = ocp.Context()
    context.memory.write_concurrent_bytes = max(_WRITE_BYTES, largest)
    context.memory.deepcopy_host_arrays = False
    context.array.saving.use_compression = False
    with context, ocp.training.Checkpointer(directory.absolute()) as checkpointer:
        checkpointer.save_checkpointables(
            step, {"params": dict(params)}, custom_metadata={"identity": dict(identity)}
        )


def _check_there(checkpointer: ocp.training.Checkpointer, directory: Path, step: int) -> None:
    steps = _whole_steps(checkpointer)
    if step not in steps:
        there = ", ".join(map(str, steps)) or "none"
        raise ValueError(f"{directory}: no checkpoint of step {step}; there are: {there}")


def _whole_steps(checkpointer: ocp.training.Checkpointer) -> list[int]:
    return sorted(checkpoint.step for checkpoint in checkpointer.checkpoints)


def _agreed_step(checkpointer: ocp.training.Checkpointer) -> int | None:
    """The newest whole checkpoint's, as the first process sees it; None before the first."""
    latest = checkpointer.latest
    found = agreed(-1 if latest is None else latest.step)
    return None if found < 0 else found


def _as_tree(opt_state: Any) -> dict[str, Any]:
    """Optimizer state as a flat dict, so that a checkpoint names no optax class."""
    leaves = jax.tree.flatten_with_path(opt_state)[0]
    # Keyed by position first: dicts come back sorted, and the order must be that of the leaves.
    return {f"{i:05d}{jax.tree_util.keystr(path)}": leaf for i, (path, leaf) in enumerate(leaves)}


def _preservation(config: CheckpointConfig, judged_later: Callable[[int], bool]) -> Any:
    policies = ocp.training.preservation_policies
    kept: list[Any] = [policies.LatestN(config.keep_last), JudgedLater(judged_later)]
    if config.keep_every:
        kept.append(policies.EveryNSteps(config.keep_every))
    if config.keep_best:
        sign = -1.0 if config.lower_is_better else 1.0
        kept.append(
            policies.BestN(
                get_metric_fn=lambda metrics: sign * metrics[config.best_metric],
                n=config.keep_best,
                keep_checkpoints_without_metrics=False,
            )
        )
    return policies.AnyPreservationPolicy(kept)
