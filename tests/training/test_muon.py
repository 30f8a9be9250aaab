"""Compare Muon and StableAdamW with independent implementations, on one device and on meshes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.optimizer import OptimizerConfig, OptimizerName, make_optimizer
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import StepInputs, make_train_step
from bert_jax.training.transformations import decays, is_hidden_matrix, scale_by_muon

Tree = dict[str, np.ndarray]
SHAPES = {
    "encoder.embeddings.token": (7, 4),
    "encoder.layers.0.ffn.up.kernel": (4, 9),
    "encoder.layers.0.ffn.down.kernel": (9, 4),
    "encoder.layers.0.attention.query.kernel": (6, 6),
    "encoder.layers.0.ffn.up.bias": (9,),
    "mlm.transform.kernel": (4, 4),
}


def draw(seed: int, deviation: float = 1.0) -> Tree:
    rng = np.random.default_rng(seed)
    return {
        name: (deviation * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in SHAPES.items()
    }


def run(config: OptimizerConfig, gradients: list[Tree], rates: list[float]) -> Tree:
    """Return the parameters after the optimizer has applied gradients at these learning rates."""
    transformation = make_optimizer(config)
    params: Any = draw(0)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    for gradient, rate in zip(gradients, rates, strict=True):
        updates, state = update(gradient, state, params, learning_rate=rate)
        params = jax.tree.map(np.add, params, jax.device_get(updates))
    return params


def test_muon_and_its_adamw_follow_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    # PyTorch orthogonalizes in bfloat16. Switch to float32, so that its results are as precise as
    # ours.
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.clone())
    config = OptimizerConfig(
        name="muon", momentum=0.9, adam_rate_factor=0.5, weight_decay=0.3, clip_norm=0.0
    )
    # Unlike PyTorch, optax corrects the bias of the momentum, as Adam does. In steps with a rate of
    # 0, the momentum forgets its initial value: 0.9 ** 200 is 7e-10.
    rates = [0.0] * 200 + [0.02] * 5
    gradients = [draw(seed, 0.1 * (seed % 7 + 1)) for seed in range(len(rates))]
    params = {name: torch.nn.Parameter(torch.tensor(x)) for name, x in draw(0).items()}
    matrices = [x for name, x in params.items() if is_hidden_matrix(name)]
    assert len(matrices) == 3
    muon = torch.optim.Muon(
        matrices, lr=0.0, weight_decay=0.3, momentum=0.9, adjust_lr_fn="match_rms_adamw"
    )
    others = [
        {"params": [x], "weight_decay": 0.3 if decays(name) else 0.0}
        for name, x in params.items()
        if not is_hidden_matrix(name)
    ]
    adam = torch.optim.AdamW(others, lr=0.0, eps=config.epsilon)
    for gradient, rate in zip(gradients, rates, strict=True):
        muon.param_groups[0]["lr"] = rate
        for group in adam.param_groups:
            group["lr"] = 0.5 * rate
        for name, parameter in params.items():
            parameter.grad = torch.tensor(gradient[name])
        muon.step()
        adam.step()
    for name, value in run(config, gradients, rates).items():
        expected = params[name].detach().numpy()
        assert np.abs(value - draw(0)[name]).max() > 0.01
        assert_allclose(value, expected, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shape", [(32, 32), (16, 48), (48, 16)])
def test_updates_keep_the_singular_vectors_and_have_the_size_of_adams(
    shape: tuple[int, int],
) -> None:
    matrix = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    muon = scale_by_muon(0.95)
    params: Any = {"matrix": jnp.zeros(shape)}
    updates, _ = muon.update({"matrix": jnp.asarray(matrix)}, muon.init(params), params)
    core = left.T @ np.asarray(updates["matrix"]) @ right.T / (0.2 * max(shape) ** 0.5)
    assert_allclose(core - np.diag(np.diag(core)), 0, atol=1e-4)
    large = np.diag(core)[values > 0.02 * np.linalg.norm(matrix)]
    assert len(large) > 14 and 0.67 < large.min() and large.max() < 1.21
    updates, _ = muon.update({"matrix": jnp.zeros(shape)}, muon.init(params), params)
    assert not np.asarray(updates["matrix"]).any()


def test_stable_adamw_follows_its_paper() -> None:
    """Compare with algorithm 2 in Wortsman et al. 2023, in float64.

    As in section 3.5 of the paper, the squares are at least epsilon squared. Gradients grow until
    the RMS exceeds 1.
    """
    config = OptimizerConfig(name="stable_adamw", beta2=0.98, weight_decay=0.3)
    gradients = [draw(seed, 0.1 * 3**seed) for seed in range(1, 6)]
    x = {name: value.astype(np.float64) for name, value in draw(0).items()}
    v = {name: np.zeros_like(value) for name, value in x.items()}
    u = {name: np.zeros_like(value) for name, value in x.items()}
    clipped = 0
    for t, gradient in enumerate(gradients, start=1):
        beta1, beta2 = (
            beta * (1 - beta ** (t - 1)) / (1 - beta**t) for beta in (config.beta1, config.beta2)
        )
        for name in x:
            g = gradient[name].astype(np.float64)
            v[name] = beta1 * v[name] + (1 - beta1) * g
            u[name] = beta2 * u[name] + (1 - beta2) * g**2
            rms = np.sqrt(np.mean(g**2 / np.maximum(u[name], config.epsilon**2)))
            rate = 0.02 / max(1.0, rms)
            clipped += rms > 1.01
            decay = config.weight_decay if decays(name) else 0.0
            step = v[name] / (np.sqrt(u[name]) + config.epsilon)
            x[name] = x[name] - rate * decay * x[name] - rate * step
    assert clipped >= 20
    for name, value in run(config, gradients, [0.02] * 5).items():
        assert_allclose(value, x[name], rtol=0, atol=1e-6, err_msg=name)


CONFIG = EncoderConfig(
    vocab_size=48,
    hidden_dim=16,
    num_layers=2,
    num_heads=2,
    ffn_dim=32,
    max_positions=12,
    initializer_range=0.2,
    hidden_dropout=0.0,
    attention_dropout=0.0,
)
COMPUTE = ComputeConfig(dtype="float32", attention="xla", scan_layers=True)
SETTINGS: dict[OptimizerName, dict[str, Any]] = {
    "muon": {"adam_rate_factor": 0.5},
    "stable_adamw": {},
}


@pytest.fixture(scope="module")
def batches(draw_document: Any, lay_out: Any) -> list[Tree]:
    rng = np.random.default_rng(0)
    sizes = [[12], [4, 6], [5, 7], [9], [8], [11], [4, 3], [10]]
    result = []
    for _ in range(4):
        rows = [[draw_document(rng, size, 48) for size in row] for row in sizes]
        result.append(lay_out(rows, length=12, predictions=4, documents_per_row=2))
    return result


class Training:
    """The compiled step of one optimizer on one mesh."""

    def __init__(self, name: OptimizerName, mesh: MeshConfig, devices: int, parts: int = 1) -> None:
        self.task = Pretraining(CONFIG, COMPUTE)
        config = OptimizerConfig(name=name, epsilon=1e-5, **SETTINGS[name])
        self.optimizer = make_optimizer(config)
        self.mesh = make_mesh(mesh, jax.devices()[:devices])
        self.step = make_train_step(self.task, self.optimizer, self.mesh, accumulation_steps=parts)

    def start(self) -> TrainState:
        # With seed 3, a bias has a gradient near 0, whose rounding Adam amplifies about tenfold.
        return init_state(self.task.definition, self.optimizer, self.mesh, seed=5)

    def train(self, state: TrainState, batches: list[Tree]) -> TrainState:
        rows = local_rows(self.mesh, 8)
        for batch in batches:
            inputs = StepInputs(np.uint32(3), np.float32(1e-2))
            state, _ = self.step(state, to_global(batch, self.mesh, rows, 8), inputs)
        return state


@pytest.fixture(scope="module")
def on_one_device() -> dict[str, Training]:
    return {name: Training(name, MeshConfig(), 1) for name in SETTINGS}


@pytest.mark.parametrize(
    ("mesh", "devices", "parts"),
    [
        pytest.param(MeshConfig(data=8), 8, 1, marks=pytest.mark.slow),
        (MeshConfig(data=2, fsdp=4), 8, 1),
        (MeshConfig(data=1, tensor=2), 2, 2),
    ],
    ids=str,
)
def test_muon_is_the_same_on_any_mesh(
    mesh: MeshConfig,
    devices: int,
    parts: int,
    batches: list[Tree],
    on_one_device: dict[str, Training],
) -> None:
    one = on_one_device["muon"]
    expected = jax.device_get(one.train(one.start(), batches).params)
    many = Training("muon", mesh, devices, parts)
    result = many.train(many.start(), batches)
    for name, value in expected.items():
        # Adam updates a key bias with a gradient that consists only of rounding errors.
        if name.endswith(".key.bias"):
            continue
        error = np.linalg.norm(jax.device_get(result.params[name]) - value)
        assert error <= 1e-5 * np.linalg.norm(value), name
    if mesh.fsdp > 1:
        name = "encoder.layers.0.ffn.up.kernel"
        leaves = jax.tree.leaves_with_path(result.opt_state)
        momentum = [leaf for path, leaf in leaves if name in jax.tree_util.keystr(path)]
        assert [leaf.addressable_shards[0].data.shape for leaf in momentum] == [(4, 32)]


@pytest.mark.parametrize("name", ["muon", pytest.param("stable_adamw", marks=pytest.mark.slow)])
def test_a_restored_state_continues_exactly(
    name: OptimizerName, batches: list[Tree], on_one_device: dict[str, Training], tmp_path: Path
) -> None:
    training = on_one_device[name]
    whole = training.train(training.start(), batches)
    half = training.train(training.start(), batches[:2])
    config = CheckpointConfig(keep_best=0)
    with Checkpointer(tmp_path, config, {}) as checkpointer:
        checkpointer.save(half, None)
    with Checkpointer(tmp_path, config, {}) as checkpointer:
        definition = training.task.definition
        restored = checkpointer.restore(
            abstract_state(definition, training.optimizer, training.mesh)
        )
    resumed = training.train(restored, batches[2:])
    for leaf, other in zip(jax.tree.leaves(resumed), jax.tree.leaves(whole), strict=True):
        assert_array_equal(leaf, other)
