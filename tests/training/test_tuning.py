"""Test that frozen parameters stay unchanged and cost nothing, and that the rest train as usual."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import optax
import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.state import TrainState, init_state
from bert_jax.training.step import StepInputs, make_train_step
from bert_jax.training.tuning import Tuning, TuningConfig

LAYERS = 3
ENCODER = EncoderConfig(
    vocab_size=64,
    hidden_dim=16,
    num_layers=LAYERS,
    num_heads=2,
    ffn_dim=32,
    max_positions=16,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
CONFIG = OptimizerConfig(peak_learning_rate=1e-2, warmup_steps=0, schedule="constant", clip_norm=0)


@pytest.fixture(scope="module")
def task() -> Pretraining:
    return Pretraining(ENCODER, ComputeConfig(dtype="float32", attention="xla"))


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "token_ids": rng.integers(0, 64, (8, 16), np.int32),
        "segment_ids": rng.integers(0, 2, (8, 16), np.int32),
        "position_ids": np.tile(np.arange(16, dtype=np.int32), (8, 1)),
        "document_ids": np.ones((8, 16), np.int32),
        "masked_positions": rng.integers(1, 16, (8, 3), np.int32),
        "masked_labels": rng.integers(0, 64, (8, 3), np.int32),
        "masked_weights": np.ones((8, 3), np.float32),
        "cls_positions": np.zeros((8, 1), np.int32),
        "pair_labels": rng.integers(0, 2, (8, 1), np.int32),
        "pair_weights": np.ones((8, 1), np.float32),
    }


class Run:
    """A few fine-tuning steps, and the FLOPs per step as counted by the compiler."""

    def __init__(self, task: Pretraining, batch: Any, config: TuningConfig | None, steps: int = 1):
        tuning = Tuning(config or TuningConfig(), ENCODER)
        words: dict[str, Any] = {"is_trainable": tuning.is_trainable} if config else {}
        rate = tuning.rate if config else None
        optimizer = make_optimizer(CONFIG, rate)
        inputs = StepInputs(np.uint32(0), np.float32(CONFIG.peak_learning_rate))
        mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
        self.is_trainable = tuning.is_trainable
        state = init_state(task.definition, optimizer, mesh, 0, **words)
        self.before = jax.device_get(state.params)
        step = make_train_step(task, optimizer, mesh, **words)
        self.flops = step.lower(state, batch, inputs).compile().cost_analysis()["flops"]
        self.state: TrainState = state
        for _ in range(steps):
            self.state, _ = step(self.state, batch, inputs)
        self.after = jax.device_get(self.state.params)


@pytest.fixture(scope="module")
def whole(task: Any, batch: Any) -> Run:
    return Run(task, batch, None)


CASES = {
    "head": (TuningConfig(top_layers=0), 0, False),
    "two layers": (TuningConfig(top_layers=2), 2, False),
    "no embeddings": (TuningConfig(embeddings=False), LAYERS, False),
    "all": (TuningConfig(), LAYERS, True),
}


@pytest.fixture(scope="module")
def tuned(task: Any, batch: Any) -> Callable[[TuningConfig], Run]:
    """Return a cached function that runs one step with a given config."""
    return cache(lambda config: Run(task, batch, config))


@pytest.mark.parametrize("case", CASES)
def test_frozen_parameters_stay_and_the_others_are_trained_as_usual(
    case: str, tuned: Callable[[TuningConfig], Run], whole: Run
) -> None:
    config, top, embeddings = CASES[case]
    run = tuned(config)
    moments = optax.tree.get(run.state.opt_state, "mu")
    assert set(moments) == {name for name in run.after if run.is_trainable(name)}
    for name, after in run.after.items():
        layers = [f"encoder.layers.{number}." for number in range(LAYERS - top, LAYERS)]
        expected = not name.startswith("encoder.") or name.startswith(tuple(layers))
        expected |= embeddings and name.startswith("encoder.embeddings.")
        assert run.is_trainable(name) == expected, name
        if not expected:
            np.testing.assert_array_equal(after, run.before[name], err_msg=name)
        else:
            # Biases of attention keys have no gradient, since they do not affect the softmax.
            assert not np.array_equal(after, run.before[name]) or name.endswith("key.bias")
            np.testing.assert_allclose(after, whole.after[name], rtol=1e-5, atol=1e-6, err_msg=name)


def test_frozen_parameters_are_not_differentiated(
    tuned: Callable[[TuningConfig], Run], whole: Run
) -> None:
    counted = ("no embeddings", "two layers", "head")
    flops = [whole.flops, *(tuned(CASES[case][0]).flops for case in counted)]
    assert flops == sorted(set(flops), reverse=True)
    forward = 2 * flops[-1] - whole.flops  # Only a forward pass of the encoder remains.
    assert flops[-1] < 0.6 * whole.flops and forward < flops[-1]


def test_lower_layers_have_lower_learning_rates(
    tuned: Callable[[TuningConfig], Run], whole: Run
) -> None:
    run = tuned(TuningConfig(layer_decay=0.5))
    # Adam's first step moves every weight by its learning rate, which also scales weight decay.
    for name, power in {
        "masked_lm.transform.kernel": 0,
        "pooler.dense.kernel": 0,
        "encoder.layers.2.ffn.up.kernel": 1,
        "encoder.layers.0.attention.query.kernel": 3,
        "encoder.embeddings.position": 4,
    }.items():
        moved = run.after[name] - run.before[name]
        expected = whole.after[name] - whole.before[name]
        np.testing.assert_allclose(moved, expected * 0.5**power, rtol=1e-3, atol=1e-7, err_msg=name)


def test_more_layers_than_the_model_has_are_refused() -> None:
    with pytest.raises(ValueError, match="tuning.top_layers=5: expected at most 3, the number of"):
        Tuning(TuningConfig(top_layers=5), ENCODER)
    with pytest.raises(ValueError, match="tuning.layer_decay=0.0"):
        TuningConfig(layer_decay=0.0)
    with pytest.raises(ValueError, match="layer_decay=0.5 applies to layers, but top_layers=0"):
        Tuning(TuningConfig(top_layers=0, layer_decay=0.5), ENCODER)


@pytest.mark.parametrize("changes", [dict(top_layers=2), dict(layer_decay=0.9)])
def test_layers_that_share_parameters_are_trained_together(changes: dict[str, Any]) -> None:
    shared = dataclasses.replace(ENCODER, num_layers=4, sharing="ffn", num_groups=2)
    with pytest.raises(
        ValueError, match=r"share parameters \(sharing='ffn'\), so either all or none of them are"
    ):
        Tuning(TuningConfig(**changes), shared)
    assert Tuning(TuningConfig(top_layers=0), shared).num_trainable_layers == 0
    assert Tuning(TuningConfig(), shared).is_trainable("encoder.layers.0.ffn.up.kernel")
