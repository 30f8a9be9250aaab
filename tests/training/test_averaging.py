"""Test the moving average of the parameters: its values, its sharding and its checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.training.averaging import AveragingConfig, average_of, averaged, with_new_average
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_checksums import AVERAGE
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, abstract_state, init_state, shardings_of
from bert_jax.training.step import StepInputs, make_train_step

DECAY = 0.3
PLAIN = make_optimizer(OptimizerConfig())
OPTIMIZER = averaged(PLAIN, AveragingConfig(ema_decay=DECAY))
KEEP_ALL = CheckpointConfig(keep_last=100, keep_best=0)


class Training:
    """A compiled step with an average, sharded over eight devices."""

    def __init__(self, task: Any) -> None:
        self.task, self.mesh = task, make_mesh(MeshConfig(data=1, fsdp=8))
        self.step = make_train_step(task, OPTIMIZER, self.mesh)

    def start(self) -> TrainState:
        return init_state(self.task.definition, OPTIMIZER, self.mesh, seed=3)

    def abstract(self) -> TrainState:
        return abstract_state(self.task.definition, OPTIMIZER, self.mesh)

    def advance(self, state: TrainState) -> TrainState:
        rng = np.random.default_rng(int(state.step))
        batch = {
            "x": rng.standard_normal((8, 8), np.float32),
            "y": rng.standard_normal((8, 4), np.float32),
            "weight": np.ones(8, np.float32),
        }
        placed = to_global(batch, self.mesh, local_rows(self.mesh, 8), 8)
        return self.step(state, placed, StepInputs(np.uint32(0), np.float32(0.1)))[0]


@pytest.fixture(scope="module")
def training(make_task: Any) -> Training:
    return Training(make_task(8))


def average(state: TrainState) -> dict[str, np.ndarray]:
    values = average_of(state)
    assert values is not None
    return jax.device_get(values)


def test_the_average_follows_its_formula(training: Training) -> None:
    state = training.start()
    expected = {name: x.astype(np.float64) for name, x in average(state).items()}
    for step in range(6):
        state = training.advance(state)
        decay = min(DECAY, (1 + step) / (10 + step))
        assert (decay == DECAY) == (step >= 3)
        for name, value in jax.device_get(state.params).items():
            expected[name] = decay * expected[name] + (1 - decay) * value
    for name, value in average(state).items():
        assert_allclose(value, expected[name], rtol=1e-6, err_msg=name)
        assert (value != np.asarray(state.params[name])).any()


def test_the_average_is_sharded_like_the_parameters(training: Training) -> None:
    shardings = shardings_of(training.abstract())
    assert average_of(shardings) == shardings.params
    state = training.advance(training.start())
    values = average_of(state)
    assert values is not None
    for name, value in values.items():
        assert value.sharding.is_equivalent_to(state.params[name].sharding, value.ndim)
    assert {shard.data.shape for shard in values["dense.kernel"].addressable_shards} == {(1, 4)}


def test_a_restored_average_continues_exactly(training: Training, tmp_path: Path) -> None:
    state = training.start()
    for _ in range(3):
        state = training.advance(state)
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        checkpointer.save(state, None)
    saved = average(state)
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        restored = checkpointer.restore(training.abstract())
    for resumed, whole in zip(
        jax.tree.leaves(training.advance(restored)),
        jax.tree.leaves(training.advance(state)),
        strict=True,
    ):
        assert_array_equal(resumed, whole)
    definition, abstract = training.task.definition, training.abstract()
    shardings = shardings_of(abstract).params
    loaded = load_parameters(tmp_path, definition, shardings, part=AVERAGE)
    for name, value in loaded.items():
        assert_array_equal(value, saved[name])
    # A run that does not keep an average can continue from the same checkpoint too.
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        plain = checkpointer.restore(abstract_state(definition, PLAIN, training.mesh))
    assert average_of(plain) is None and int(plain.step) == 3


def test_a_checkpoint_without_an_average_starts_one(training: Training, tmp_path: Path) -> None:
    definition = training.task.definition
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        checkpointer.save(init_state(definition, PLAIN, training.mesh, seed=5), None)
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        state = checkpointer.restore(training.abstract())
    for name, value in average(state).items():
        assert_array_equal(value, state.params[name])
    # This step would fail if the parameters and their average shared a buffer.
    training.advance(state)
    with pytest.raises(ValueError, match="the checkpoint has no moving average of the parameters"):
        load_parameters(tmp_path, definition, shardings_of(training.abstract()).params, 0, AVERAGE)


def test_only_a_state_with_an_average_gets_a_new_one(training: Training) -> None:
    state = init_state(training.task.definition, PLAIN, training.mesh, seed=5)
    assert with_new_average(state) is state and average_of(state) is None
    assert averaged(PLAIN, AveragingConfig()) is PLAIN


@pytest.mark.parametrize("decay", [-0.1, 1.0, float("nan")])
def test_impossible_decays_are_refused(decay: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"averaging.ema_decay={decay}: expected 0 <=")):
        AveragingConfig(ema_decay=decay)
