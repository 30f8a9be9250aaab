"""Test fine-tuning losses and metrics, including padded batches and batches split into parts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.finetuning.registry import kind_of_head
from bert_jax.labeled_data.features import Features, Sequences
from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.parameters import Parameters
from bert_jax.tasks.finetuning import ClassifierTask
from bert_jax.tasks.task import Metrics, add_metrics, total_loss
from bert_jax.training.sharding import MeshConfig, layout, local_rows, make_mesh, to_global
from bert_jax.training.state import init_state, parameter_key

EXAMPLES, CHOICES, LENGTH, SEED = 5, 2, 8, 3
ENCODER = EncoderConfig(
    vocab_size=48,
    hidden_dim=16,
    num_layers=1,
    num_heads=2,
    ffn_dim=32,
    max_positions=LENGTH,
    initializer_range=0.5,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
COMPUTE = ComputeConfig(dtype="float32", attention="xla")
LABELS = ("a", "b", "c")
CONFIGS = {
    "single_label": ModelConfig(ENCODER, "classification", LABELS),
    "multi_label": ModelConfig(ENCODER, "classification", LABELS, problem="multi_label"),
    "regression": ModelConfig(ENCODER, "classification", ("score",), problem="regression"),
    "multiple_choice": ModelConfig(ENCODER, "multiple_choice"),
    "tagging": ModelConfig(ENCODER, "tagging", LABELS),
    "span": ModelConfig(ENCODER, "span"),
}
Batch = dict[str, np.ndarray]


def features_of(name: str) -> Features:
    """Return five two-segment examples with the targets that the task needs."""
    rng = np.random.default_rng(0)
    num_choices = CHOICES if name == "multiple_choice" else 1
    sizes = rng.integers(3, LENGTH + 1, EXAMPLES * num_choices)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    sequences = Sequences(rng.integers(1, 48, starts[-1]).astype(np.int32), starts, sizes // 2)
    classes = rng.integers(0, num_choices if num_choices > 1 else 3, EXAMPLES).astype(np.int32)
    targets: dict[str, Any] = {"labels": classes}
    token_targets = {}
    match name:
        case "multi_label":
            targets = {"labels": (rng.random((EXAMPLES, 3)) < 0.5).astype(np.float32)}
        case "regression":
            targets = {"labels": rng.standard_normal(EXAMPLES, np.float32)}
        case "tagging":
            counts = np.arange(starts[-1]) % 3 > 0
            drawn = rng.integers(0, 3, starts[-1])
            targets, token_targets = {}, {"labels": drawn, "label_weights": counts}
        case "span":
            begins, ends = np.array([[0, 1, 2, 1, LENGTH], [2, 1, 2, LENGTH, LENGTH]], np.int32)
            targets = {"start_positions": begins, "end_positions": ends}
    return Features(sequences, targets, token_targets, num_choices)


def task_of(config: ModelConfig) -> ClassifierTask:
    kind = kind_of_head(config.head)
    assert kind is not None
    return kind.loss(config, COMPUTE)


def batch_of(name: str, rows: list[int]) -> Batch:
    return features_of(name).batch(np.array(rows), LENGTH)


class Result(NamedTuple):
    loss: float
    gradients: Parameters
    metrics: Metrics


def loss_of(name: str) -> Callable:
    """Return a function that maps (params, batch, weights) to ((loss, metrics), gradients)."""
    task = task_of(CONFIGS[name])

    def loss(
        params: Parameters, batch: Batch, weights: dict[str, jax.Array]
    ) -> tuple[jax.Array, Metrics]:
        metrics = task.metrics(task.definition.module(params), batch, None)
        return total_loss(task, metrics, weights), metrics

    return jax.value_and_grad(loss, has_aux=True)


@functools.cache
def compiled(name: str) -> Callable:
    return jax.jit(loss_of(name))


@functools.cache
def params_of(config: ModelConfig) -> Parameters:
    return jax.jit(task_of(config).definition.init)(parameter_key(SEED))


def logits_of(config: ModelConfig, batch: Batch) -> np.ndarray:
    task = task_of(config)

    @jax.jit
    def logits(params: Parameters) -> jax.Array:
        return task.logits(task.definition.module(params), batch)

    return np.asarray(logits(params_of(config)))


def result_of(name: str, batch: Batch, whole: Batch | None = None) -> Result:
    """Return the result for a batch, which may be a part of the batch `whole`."""
    weights = task_of(CONFIGS[name]).loss_weights(batch if whole is None else whole)
    (value, metrics), gradients = compiled(name)(params_of(CONFIGS[name]), batch, weights)
    return jax.device_get(Result(value, gradients, metrics))


def assert_same(actual: Result, expected: Result) -> None:
    assert_allclose(actual.loss, expected.loss, rtol=1e-5)
    assert actual.metrics.keys() == expected.metrics.keys()
    for metric, (total, _) in expected.metrics.items():
        assert_allclose(actual.metrics[metric].sum, total, rtol=1e-5, err_msg=metric)
    for parameter, gradient in expected.gradients.items():
        assert_allclose(actual.gradients[parameter], gradient, rtol=0, atol=1e-5, err_msg=parameter)


@pytest.fixture(scope="module", params=CONFIGS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def whole(name: str) -> Result:
    """Return the result for all five examples in one batch, without padding rows."""
    return result_of(name, batch_of(name, list(range(EXAMPLES))))


def test_padding_rows_are_ignored(name: str, whole: Result) -> None:
    batch = batch_of(name, [-1, 0, 1, -1, 2, 3, 4, -1])
    padding = batch["example_weights"] == 0
    for target in ("labels", "label_weights", "start_positions", "end_positions"):
        if target in batch:
            batch[target][padding] = 2
    result = result_of(name, batch)
    assert_same(result, whole)
    for metric, expected in whole.metrics.items():
        assert result.metrics[metric].weight == expected.weight, metric


def test_loss_and_gradients_of_an_empty_batch_are_zero(name: str) -> None:
    result = result_of(name, batch_of(name, [-1] * EXAMPLES))
    assert result.loss == result.metrics["tokens"].sum == 0
    assert all(not gradient.any() for gradient in result.gradients.values())


def test_parts_add_up_to_the_whole(name: str, whole: Result) -> None:
    batch = batch_of(name, list(range(EXAMPLES)))
    parts = [[0, -1, 1, -1, -1], [2, 3, -1, 4, -1], [-1] * 5]
    results = [result_of(name, batch_of(name, rows), batch) for rows in parts]
    loss, gradients = jax.tree.map(lambda *x: sum(x), *((r.loss, r.gradients) for r in results))
    metrics = functools.reduce(add_metrics, (r.metrics for r in results))
    assert_same(Result(loss, gradients, metrics), whole)


def test_results_on_several_devices_match_one_device(name: str, whole: Result) -> None:
    task = task_of(CONFIGS[name])
    mesh = make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), jax.devices())
    params = init_state(task.definition, optax.identity(), mesh, seed=SEED).params
    batch = batch_of(name, [0, -1, 1, 2, -1, 3, -1, 4])

    @jax.jit
    def result(params: Parameters, batch: Batch) -> tuple:
        with layout(mesh):
            return loss_of(name)(params, batch, task.loss_weights(batch))

    (loss, metrics), gradients = result(params, to_global(batch, mesh, local_rows(mesh, 8), 8))
    assert_same(jax.device_get(Result(loss, gradients, metrics)), whole)


def test_metrics_match_the_logits(name: str, whole: Result) -> None:
    config = CONFIGS[name]
    batch = batch_of(name, list(range(EXAMPLES)))
    scores = logits_of(config, batch)
    assert scores.dtype == np.float32
    shape = {
        "multiple_choice": (EXAMPLES, CHOICES),
        "tagging": (EXAMPLES, LENGTH, 3),
        "span": (EXAMPLES, LENGTH, 2),
    }.get(name, (EXAMPLES, len(config.labels)))
    assert scores.shape == shape
    means = {metric: float(value.mean()) for metric, value in whole.metrics.items()}
    assert means["tokens"] == batch["attention_mask"].sum()
    match name:
        case "regression":
            assert "accuracy" not in means
            expected = np.mean((scores[:, 0] - batch["labels"]) ** 2)
            assert means["squared_error"] == pytest.approx(expected, rel=1e-5)
            return
        case "multi_label":
            correct = (scores > 0) == (batch["labels"] == 1)
        case "tagging":
            correct = (scores.argmax(-1) == batch["labels"])[batch["label_weights"] == 1]
        case "span":
            # The last two answers do not lie completely within the row.
            starts, ends = (batch[f"{end}_positions"][:3] for end in ("start", "end"))
            best = scores[:3].argmax(axis=1)
            correct = (best[:, 0] == starts) & (best[:, 1] == ends)
            assert [whole.metrics[f"{end}_cross_entropy"].weight for end in ("start", "end")] == [
                4,
                3,
            ]
        case _:
            correct = scores.argmax(-1) == batch["labels"]
    assert means["accuracy"] == pytest.approx(correct.mean())


def test_logits_are_computed_without_dropout() -> None:
    quiet = CONFIGS["single_label"]
    noisy = ModelConfig(
        EncoderConfig(**{**vars(ENCODER), "hidden_dropout": 0.5}),
        "classification",
        LABELS,
        head_dropout=0.5,
    )
    batch = batch_of("single_label", [0, 1])
    assert_array_equal(logits_of(quiet, batch), logits_of(noisy, batch))
    task = task_of(noisy)

    @jax.jit
    def loss(key: jax.Array | None) -> jax.Array:
        model = task.definition.module(params_of(noisy))
        return task.metrics(model, batch, key)["cross_entropy"].sum

    assert loss(None) != loss(jax.random.key(1))


def test_a_head_of_pretraining_is_not_fine_tuned() -> None:
    assert kind_of_head(ModelConfig(ENCODER).head) is None
