"""Test that a checkpoint is restored bit for bit on any mesh, or rejected with a reason."""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from numpy.testing import assert_array_equal

from bert_jax.tasks.task import Task
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, make_mesh, parameter_shardings
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.validation import differences

IDENTITY = {"model": {"hidden_dim": 8, "num_layers": 2}, "corpora": ["a1b2"], "lowercase": True}
EVERYTHING = CheckpointConfig(keep_last=100, keep_best=0)
OPTIMIZER = make_optimizer(OptimizerConfig())


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    return make_mesh(MeshConfig(data=2, fsdp=2, tensor=2))


@pytest.fixture(scope="module")
def task(make_task: Callable[[int], Task]) -> Task:
    return make_task(8)


@pytest.fixture(scope="module")
def state(task: Task, mesh: Mesh) -> TrainState:
    """Return a state in which all numbers differ."""
    state = init_state(task.definition, OPTIMIZER, mesh, seed=0)
    rng = np.random.default_rng(0)

    def scramble(leaf: jax.Array) -> jax.Array:
        value = rng.standard_normal(leaf.shape) * 100
        return jax.device_put(value.astype(leaf.dtype), leaf.sharding)

    return at(jax.tree.map(scramble, state), 3)


def at(state: TrainState, step: int) -> TrainState:
    place = state.step.sharding
    return dataclasses.replace(state, step=jax.device_put(np.int32(step), place))


def save(
    directory: Path,
    state: TrainState,
    config: CheckpointConfig = EVERYTHING,
    steps: dict[int, dict[str, float] | None] | None = None,
    identity: Any = IDENTITY,
) -> None:
    """Save a checkpoint at every step in `steps`, with the metrics given for that step."""
    with Checkpointer(directory, config, identity) as checkpointer:
        for step, metrics in (steps or {int(state.step): None}).items():
            checkpointer.save(at(state, step), metrics)


def test_only_large_arrays_are_written_in_parts(tmp_path: Path) -> None:
    """Check that eight devices write an array in parts only if each part has at least 4 KiB.

    In either case, the arrays must be restored correctly.
    """
    everywhere = jax.sharding.NamedSharding(make_mesh(MeshConfig()), jax.sharding.PartitionSpec())
    rng, rows = np.random.default_rng(0), {"large": 256, "below": 248, "small": 8}
    values = {name: rng.standard_normal((n, 32), np.float32) for name, n in rows.items()}
    params = {name: jax.device_put(value, everywhere) for name, value in values.items()}
    step = jax.device_put(np.int32(3), everywhere)
    state = TrainState(step, params, jax.tree.map(lambda x: x + 1, params))
    save(tmp_path, state)
    (file,) = tmp_path.glob("3/params/array_metadatas/process_0")
    written = {
        array["array_metadata"]["param_name"]: array["array_metadata"]["write_shape"]
        for array in json.loads(file.read_text())["array_metadatas"]
    }
    assert written == {"large": [32, 32], "below": [248, 32], "small": [8, 32]}
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        restored = checkpointer.restore(state)
    for name, value in values.items():
        assert_array_equal(restored.params[name], value)
        assert_array_equal(restored.opt_state[name], value + 1)


def steps_in(directory: Path) -> set[int]:
    return {int(path.name) for path in directory.iterdir() if path.name.isdigit()}


def assert_equal(state: TrainState, expected: TrainState) -> None:
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for leaf, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert leaf.dtype == other.dtype
        assert_array_equal(leaf, other)


def test_only_stop_requests_report_a_step_to_jax(
    tmp_path: Path, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that only `StopRequest` reports a step, since JAX remembers the last one."""
    asked: list[int] = []
    monkeypatch.setattr(multihost_utils, "reached_preemption_sync_point", asked.append)
    save(tmp_path, state)
    assert steps_in(tmp_path) == {3} and not asked


def test_a_state_is_restored_bit_for_bit_on_its_mesh(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState
) -> None:
    save(tmp_path, state)
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        assert checkpointer.latest_step() == 3
        restored = checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))
    assert_equal(restored, state)
    for leaf, other in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert leaf.sharding == other.sharding


@pytest.mark.parametrize(
    ("config", "devices"), [(MeshConfig(), 1), (MeshConfig(1, 4, 2), 8), (MeshConfig(), 2)]
)
def test_a_state_is_restored_on_another_mesh(
    tmp_path: Path, task: Task, state: TrainState, config: MeshConfig, devices: int
) -> None:
    save(tmp_path, state)
    other = make_mesh(config, jax.devices()[:devices])
    abstract = abstract_state(task.definition, OPTIMIZER, other)
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        restored = checkpointer.restore(abstract)
    assert_equal(restored, state)
    for leaf, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(abstract), strict=True):
        assert leaf.sharding == expected.sharding


def test_training_may_donate_the_buffers_of_a_state_being_saved(
    tmp_path: Path, make_task: Callable[[int], Task], mesh: Mesh
) -> None:
    # Save 48 MiB, so that the bytes are still being written when the next step donates the buffers.
    definition = make_task(1_048_576).definition
    abstract = abstract_state(definition, OPTIMIZER, mesh)
    state = init_state(definition, OPTIMIZER, mesh, seed=1)
    expected = jax.tree.map(lambda x: np.array(x, copy=True), state.params)
    destroy = jax.jit(lambda s: jax.tree.map(lambda x: x * 0 - 7, s), donate_argnums=0)
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        checkpointer.save(state, None)
        overwritten = jax.block_until_ready(destroy(state))
        assert (np.asarray(overwritten.params["dense.bias"]) == -7).all()
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        restored = checkpointer.restore(abstract)
    for name, value in expected.items():
        assert_array_equal(restored.params[name], value)


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        (CheckpointConfig(keep_last=2, keep_best=0), {50, 60}),
        (CheckpointConfig(keep_last=1, keep_every=20, keep_best=0), {20, 40, 60}),
        # Step 30 has the lowest loss, followed by 20; step 10 was never evaluated.
        (CheckpointConfig(keep_last=1, keep_best=1), {30, 60}),
        (CheckpointConfig(keep_last=1, keep_best=2), {20, 30, 60}),
        (
            CheckpointConfig(
                keep_last=1, keep_best=1, best_metric="mlm_accuracy", lower_is_better=False
            ),
            {40, 60},
        ),
    ],
    ids=str,
)
def test_the_configured_checkpoints_are_kept(
    tmp_path: Path, state: TrainState, config: CheckpointConfig, kept: set[int]
) -> None:
    def metrics(loss: float, accuracy: float) -> dict[str, float]:
        return {"mlm_loss": loss, "mlm_accuracy": accuracy}

    first = {10: None, 20: metrics(4.0, 0.1), 30: metrics(3.0, 0.3)}
    then = {40: metrics(5.0, 0.4), 50: None, 60: metrics(6.0, 0.2)}
    save(tmp_path, state, config, first)
    # A resumed run still knows the metrics of earlier checkpoints.
    save(tmp_path, state, config, then)
    assert steps_in(tmp_path) == kept


def test_a_checkpoint_whose_evaluation_is_due_is_kept(tmp_path: Path, state: TrainState) -> None:
    """Keep a checkpoint without metrics if its evaluation is due, but not otherwise."""
    saved = {3: None, 7: None, 10: {"score": 1.0}, 15: None, 20: {"score": 3.0}, 30: {"score": 2.0}}
    config = CheckpointConfig(best_metric="score", lower_is_better=False, keep_last=1)
    due = (10, 15, 20, 30).__contains__
    with Checkpointer(tmp_path, config, IDENTITY, due) as checkpointer:
        for step, metrics in saved.items():
            checkpointer.save(at(state, step), metrics)
    assert steps_in(tmp_path) == {15, 20, 30}


def test_the_metric_of_keep_best_must_exist(tmp_path: Path, state: TrainState) -> None:
    config = CheckpointConfig(best_metric="f1")
    with pytest.raises(ValueError, match="best_metric='f1'.* mlm_accuracy, mlm_loss"):
        save(tmp_path, state, config, {10: {"mlm_loss": 1.0, "mlm_accuracy": 0.5}})


@pytest.mark.parametrize(("lower_is_better", "best"), [(True, 40), (False, 50)])
def test_a_resumed_run_can_compare_checkpoints_by_a_new_metric(
    tmp_path: Path, state: TrainState, lower_is_better: bool, best: int
) -> None:
    """Check that checkpoints without the metric count as worse than all others."""
    save(tmp_path, state, CheckpointConfig(keep_last=1), {10: {"mlm_loss": 1.0}, 20: None})
    config = CheckpointConfig(keep_last=1, best_metric="text_loss", lower_is_better=lower_is_better)
    values = {30: 5.0, 40: 4.0, 50: 6.0, 60: 5.0}
    later = {step: {"mlm_loss": 2.0, "text_loss": value} for step, value in values.items()}
    save(tmp_path, state, config, later)
    assert steps_in(tmp_path) == {best, 60}


def test_a_different_run_is_refused_with_the_difference(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState
) -> None:
    save(tmp_path, state)
    other = {"model": {"hidden_dim": 16, "num_layers": 2}, "corpora": ["c3d4"], "seed": 1}
    with (
        Checkpointer(tmp_path, EVERYTHING, other) as checkpointer,
        pytest.raises(ValueError, match="belongs to another run") as error,
    ):
        checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))
    for line in (
        "model.hidden_dim: 8 -> 16",
        "corpora: ['a1b2'] -> ['c3d4']",
        "lowercase: True -> None",
        "seed: None -> 1",
    ):
        assert f"\n  {line}\n" in str(error.value)
    assert "num_layers" not in str(error.value)


def test_another_optimizer_is_refused_with_the_difference(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState
) -> None:
    save(tmp_path, state)
    other = optax.sgd(1e-3, momentum=0.9)
    with (
        Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer,
        pytest.raises(ValueError, match="another optimizer") as error,
    ):
        checkpointer.restore(abstract_state(task.definition, other, mesh))
    assert ".nu['dense.kernel']" in str(error.value) and ".trace['dense.kernel']" in str(
        error.value
    )
    # The names of a run's own optimizer state may have changed since the checkpoint was saved.
    assert "If the config is the same, the checkpoint was saved by an earlier version" in str(
        error.value
    )


def test_differences_include_nested_values() -> None:
    assert differences({"a": {"b": 1}, "c": [1]}, {"a": {"b": 1}, "c": [1]}) == []
    assert differences({"a": {"b": 1}}, {"a": 2}) == ["a: {'b': 1} -> 2"]


def test_the_directory_of_a_killed_save_is_not_a_checkpoint(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState
) -> None:
    save(tmp_path, state, steps={1: None, 2: None})
    # Orbax writes to a directory with a temporary name, and renames it when it is complete.
    left = tmp_path / "5.orbax-checkpoint-tmp-1712345678"
    (tmp_path / "2").rename(left)
    (left / "_CHECKPOINT_METADATA").unlink(missing_ok=True)
    with Checkpointer(tmp_path, EVERYTHING, IDENTITY) as checkpointer:
        assert checkpointer.latest_step() == 1
        checkpointer.restore(abstract_state(task.definition, OPTIMIZER, mesh))
        checkpointer.save(at(state, 5), None)
    assert steps_in(tmp_path) == {1, 5}
    assert not left.exists()


def test_an_empty_directory_has_no_checkpoint(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "new", EVERYTHING, IDENTITY) as checkpointer:
        assert checkpointer.latest_step() is None


def test_parameters_are_loaded_without_the_optimizer(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState
) -> None:
    save(tmp_path, state, steps={3: None, 4: None})
    definition = task.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(tmp_path, definition, shardings)
    for name, value in state.params.items():
        assert_array_equal(params[name], value)
        assert params[name].sharding == shardings[name]


def test_parameters_are_loaded_from_a_relative_directory(
    tmp_path: Path, task: Task, mesh: Mesh, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "run", state)
    monkeypatch.chdir(tmp_path)
    definition = task.definition
    shardings = parameter_shardings(definition.shapes, definition.logical_axes, mesh)
    params = load_parameters(Path("run"), definition, shardings)
    assert params.keys() == state.params.keys()


def test_parameters_that_do_not_fit_are_refused(
    tmp_path: Path, make_task: Callable[[int], Task], state: TrainState
) -> None:
    shardings: dict[str, Any] = {}
    definition = make_task(16).definition
    with pytest.raises(ValueError, match="no such directory; expected a run's `checkpoints`"):
        load_parameters(tmp_path / "none", definition, shardings)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty: contains no complete checkpoint"):
        load_parameters(tmp_path / "empty", definition, shardings)
    save(tmp_path / "run", state)
    message = "dense.kernel has shape (8, 4), but the model expects (16, 4)"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_parameters(tmp_path / "run", definition, shardings)
    renamed = dataclasses.replace(
        definition,
        shapes={"other" if n == "dense.bias" else n: s for n, s in definition.shapes.items()},
    )
    with pytest.raises(ValueError, match=re.escape("- other\n  + dense.bias")):
        load_parameters(tmp_path / "run", renamed, shardings)


@pytest.mark.parametrize(
    "values", [{"every_steps": 0}, {"keep_last": 0}, {"keep_every": -1}, {"keep_best": -1}]
)
def test_impossible_settings_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"checkpoint.{next(iter(values))}|and checkpoint"):
        CheckpointConfig(**values)


def test_lower_is_better_is_refused_for_an_accuracy() -> None:
    with pytest.raises(
        ValueError, match="would keep the worst checkpoints. Set checkpoint.lower_is_better"
    ):
        CheckpointConfig(best_metric="mlm_accuracy")
