"""Test that a step gives the same result on any mesh and with any number of micro-batches."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.tasks.task import Metrics
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, init_state
from bert_jax.training.step import StepInputs, make_evaluation_step, make_train_step

CONFIG = EncoderConfig(
    vocab_size=48,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    ffn_dim=32,
    max_positions=12,
    initializer_range=0.2,
)
NO_DROPOUT = dataclasses.replace(CONFIG, hidden_dropout=0.0, attention_dropout=0.0)
COMPUTE = ComputeConfig(dtype="float32", attention="xla", scan_layers=True)
# Key biases do not affect the softmax, so their gradients are rounding errors of about 1e-9. With
# an epsilon of 1e-6, these errors moved the biases 3e-5 apart.
OPTIMIZER = OptimizerConfig(peak_learning_rate=1e-2, warmup_steps=0, clip_norm=0.5, epsilon=1e-5)
STEPS = 3

Batch = dict[str, np.ndarray]
Result = tuple[dict[str, np.ndarray], list[Metrics]]


@pytest.fixture(scope="module")
def batches(draw_document: Callable, lay_out: Callable) -> list[Batch]:
    """Return rows with one, two and no documents, so that all micro-batches differ in weight."""
    rng = np.random.default_rng(0)
    result = []
    for _ in range(STEPS):
        sizes = [[12], [], [5, 7], [], [8], [], [4, 3], []]
        rows = [[draw_document(rng, size, 48) for size in row] for row in sizes]
        result.append(lay_out(rows, length=12, predictions=4, documents_per_row=2))
    return result


def train(
    config: EncoderConfig, batches: list[Batch], mesh_config: MeshConfig, devices: int, parts: int
) -> Result:
    task = Pretraining(config, COMPUTE)
    optimizer = make_optimizer(OPTIMIZER)
    rates = LearningRates(OPTIMIZER, STEPS)
    mesh = make_mesh(mesh_config, jax.devices()[:devices])
    step = make_train_step(task, optimizer, mesh, accumulation_steps=parts)
    state = init_state(task.definition, optimizer, mesh, seed=3)
    rows, metrics = local_rows(mesh, 8), []
    for batch, rate in zip(batches, rates, strict=True):
        state, of_step = step(
            state, to_global(batch, mesh, rows, 8), StepInputs(np.uint32(3), rate)
        )
        metrics.append(jax.device_get(of_step))
    assert int(state.step) == len(batches)
    return jax.device_get(state.params), metrics


def assert_same(result: Result, expected: Result) -> None:
    for metrics, others in zip(result[1], expected[1], strict=True):
        assert metrics.keys() == others.keys()
        for name in others:
            assert_allclose(metrics[name].sum, others[name].sum, rtol=2e-5, err_msg=name)
    for name, value in expected[0].items():
        assert_allclose(result[0][name], value, rtol=0, atol=2e-5, err_msg=name)


@pytest.fixture(scope="module")
def with_dropout(batches: list[Batch]) -> Result:
    return train(CONFIG, batches, MeshConfig(), devices=1, parts=1)


@pytest.fixture(scope="module")
def without_dropout(batches: list[Batch]) -> Result:
    return train(NO_DROPOUT, batches, MeshConfig(), devices=1, parts=1)


@pytest.mark.parametrize(
    "mesh",
    [
        MeshConfig(data=8),
        MeshConfig(data=1, fsdp=8),
        MeshConfig(data=2, fsdp=2, tensor=2),
        # The tensor axis is larger than the number of heads, so it splits only the projections.
        MeshConfig(data=2, fsdp=1, tensor=4),
    ],
    ids=str,
)
def test_eight_devices_learn_the_same_as_one(
    mesh: MeshConfig, batches: list[Batch], with_dropout: Result
) -> None:
    assert_same(train(CONFIG, batches, mesh, devices=8, parts=1), with_dropout)


def test_training_changes_every_parameter(with_dropout: Result) -> None:
    task = Pretraining(CONFIG, COMPUTE)
    fresh = jax.device_get(jax.jit(task.definition.init)(jax.random.key(3)))
    for name, value in with_dropout[0].items():
        if not name.endswith(".key.bias"):  # Key biases do not affect the softmax.
            assert np.abs(value - fresh[name]).max() > 1e-3, name


@pytest.mark.parametrize(
    ("mesh", "devices", "parts"),
    [
        (MeshConfig(), 1, 2),
        (MeshConfig(data=2), 2, 4),
    ],
)
def test_accumulation_equals_the_step_of_the_whole_batch(
    mesh: MeshConfig, devices: int, parts: int, batches: list[Batch], without_dropout: Result
) -> None:
    # Part p has rows p, p + parts, ..., so some parts contain only padding.
    weights = batches[0]["masked_weights"].sum(axis=1)
    assert (sorted(weights[part::parts].sum() for part in range(parts)))[0] == 0
    accumulated = train(NO_DROPOUT, batches, mesh, devices, parts)
    assert_same(accumulated, without_dropout)
    for metrics, others in zip(accumulated[1], without_dropout[1], strict=True):
        for name in ("mlm_loss", "nsp_loss", "mlm_accuracy"):
            assert metrics[name].weight == others[name].weight
        assert metrics["tokens"].sum == others["tokens"].sum == 39


@pytest.fixture(scope="module")
def frozen() -> tuple[Any, Callable[[int], TrainState]]:
    """Return a train step with learning rate 0, and a function that makes a step's state."""
    task = Pretraining(CONFIG, COMPUTE)
    optimizer = make_optimizer(OPTIMIZER)
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    jitted = make_train_step(task, optimizer, mesh)

    def train_step(state: TrainState, batch: Batch) -> Any:
        return jitted(state, batch, StepInputs(np.uint32(3), np.float32(0)))

    def state_at(step: int) -> TrainState:
        state = init_state(task.definition, optimizer, mesh, seed=3)
        return dataclasses.replace(state, step=state.step + step)

    return train_step, state_at


def test_dropout_is_a_function_of_seed_and_step(
    frozen: tuple[Any, Callable[[int], TrainState]], batches: list[Batch]
) -> None:
    train_step, state_at = frozen
    state, metrics = train_step(state_at(0), batches[0])
    losses = [float(metrics["loss"].sum)]
    for _ in range(2):
        state, metrics = train_step(state, batches[0])
        losses.append(float(metrics["loss"].sum))
    assert len(set(losses)) == 3
    _, metrics = train_step(state_at(2), batches[0])
    assert float(metrics["loss"].sum) == losses[2]


def test_an_empty_batch_changes_only_the_step(
    frozen: tuple[Any, Callable[[int], TrainState]], batches: list[Batch]
) -> None:
    train_step, state_at = frozen
    empty = {name: np.zeros_like(array) for name, array in batches[0].items()}
    before = jax.device_get(state_at(0))
    state, metrics = train_step(state_at(0), empty)
    assert int(state.step) == 1
    assert metrics["loss"].sum == metrics["gradient_norm"].sum == 0
    for name, value in before.params.items():
        assert_array_equal(state.params[name], value)


def test_evaluation_is_the_forward_pass_without_dropout(
    batches: list[Batch], without_dropout: Result
) -> None:
    task = Pretraining(CONFIG, COMPUTE)
    mesh = make_mesh(MeshConfig(data=2), jax.devices()[:2])
    params = init_state(task.definition, make_optimizer(OPTIMIZER), mesh, 3).params
    step = make_evaluation_step(task, mesh)
    metrics = step(params, to_global(batches[0], mesh, local_rows(mesh, 8), 8))
    expected = without_dropout[1][0]
    assert metrics.keys() == expected.keys() - {"loss", "gradient_norm"}
    for name in metrics:
        assert_allclose(metrics[name], expected[name], rtol=1e-5, err_msg=name)
