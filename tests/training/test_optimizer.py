"""Test schedules at selected steps, and optimizers against the papers that introduced them."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.layout import Layout, use_layout
from bert_jax.models.variants import variant
from bert_jax.tasks.pretraining import Pretraining
from bert_jax.training import optimizer, transformations
from bert_jax.training.learning_rates import LearningRates, describe_optimizer, make_schedule
from bert_jax.training.optimizer import (
    OPTIMIZERS,
    OptimizerConfig,
    OptimizerName,
    make_optimizer,
)
from bert_jax.training.schedules import Cosine
from bert_jax.training.transformations import decays, global_norm

Tree = dict[str, np.ndarray]


def rates(total: int, **values: Any) -> Callable[[int], float]:
    config = OptimizerConfig(**({"peak_learning_rate": 1e-3, "warmup_steps": 10} | values))
    schedule = make_schedule(config, total)
    return lambda step: float(schedule(step))


def test_warmup_rises_in_equal_steps_from_the_first_step() -> None:
    rate = rates(110)
    for step in range(10):
        assert rate(step) == pytest.approx(1e-3 * (step + 1) / 11)
    assert rate(10) == pytest.approx(1e-3)


def test_linear_decay_reaches_its_end() -> None:
    rate = rates(110, end_learning_rate=1e-4)
    assert rate(60) == pytest.approx((1e-3 + 1e-4) / 2)
    assert rate(35) == pytest.approx(1e-4 + 9e-4 * 0.75)
    assert rate(110) == pytest.approx(1e-4)
    assert rate(500) == pytest.approx(1e-4)


def test_the_schedule_of_the_original_recipe() -> None:
    # Devlin et al. 2019, appendix A.2, used a rate of 1e-4, 10,000 warm-up steps and 1,000,000
    # steps in total.
    schedule = make_schedule(OptimizerConfig(), 1_000_000)
    assert float(schedule(10_000)) == pytest.approx(1e-4)
    assert float(schedule(505_000)) == pytest.approx(5e-5)
    assert 0 < float(schedule(999_999)) < 1.1e-10


def test_cosine_constant_and_inverse_square_root() -> None:
    cosine = rates(110, schedule="cosine", end_learning_rate=1e-4)
    assert cosine(10) == pytest.approx(1e-3)
    assert cosine(35) == pytest.approx(1e-4 + 9e-4 * (1 + math.cos(math.pi / 4)) / 2)
    assert cosine(110) == pytest.approx(1e-4)
    constant = rates(110, schedule="constant")
    assert constant(10) == constant(109) == pytest.approx(1e-3)
    inverse = rates(110, schedule="inverse_sqrt")
    assert inverse(10) == pytest.approx(1e-3)
    assert inverse(40) == pytest.approx(1e-3 / 2)
    assert inverse(90) == pytest.approx(1e-3 / 3)


def test_the_stable_phase_does_not_depend_on_the_length_of_the_run() -> None:
    linear = rates(110, schedule="wsd", decay_steps=40, end_learning_rate=1e-4)
    assert [linear(step) for step in range(10)] == [rates(50)(step) for step in range(10)]
    assert [linear(step) for step in range(10, 71)] == [pytest.approx(1e-3)] * 61
    assert linear(80) == pytest.approx(1e-4 + 9e-4 * 0.75)
    assert linear(110) == linear(500) == pytest.approx(1e-4)
    longer = rates(200, schedule="wsd", decay_steps=40)
    assert [longer(step) for step in range(71)] == [linear(step) for step in range(71)]


def test_one_minus_sqrt_follows_its_paper() -> None:
    # Hägele et al. 2024, equation 2, with N = 110 and N_decay = 22, which is 20% of the run.
    fraction = rates(110, schedule="wsd", decay_fraction=0.2, decay_shape="1-sqrt")
    for step in range(88, 110):
        expected = 1e-3 * (1 - math.sqrt((step - (110 - 22)) / 22))
        assert fraction(step) == pytest.approx(expected, rel=1e-5)
    assert fraction(87) == pytest.approx(1e-3)
    rate = LearningRates(
        OptimizerConfig(warmup_steps=0, schedule="wsd", decay_steps=4, decay_shape="1-sqrt"), 6
    )
    assert [float(rate[step]) for step in range(6)] == pytest.approx(
        [1e-4, 1e-4, 1e-4, 0.5e-4, (1 - math.sqrt(0.5)) * 1e-4, (1 - math.sqrt(0.75)) * 1e-4]
    )


def test_a_decay_longer_than_the_rest_of_the_run_is_refused() -> None:
    config = OptimizerConfig(warmup_steps=10, schedule="wsd", decay_steps=41)
    with pytest.raises(ValueError, match="decay_steps=41: the decay of 41 steps would begin duri"):
        make_schedule(config, 50)
    assert float(make_schedule(config, 51)(10)) == pytest.approx(1e-4)


def test_new_settings_with_their_defaults_do_not_change_an_identity() -> None:
    assert OptimizerConfig().identity().keys() == {
        *("name", "peak_learning_rate", "warmup_steps", "warmup_fraction", "schedule"),
        *("end_learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "clip_norm"),
    }
    identity = OptimizerConfig(schedule="wsd", decay_steps=5).identity()
    assert (identity["schedule"], identity["decay_steps"]) == ("wsd", 5)


def test_the_warmup_may_be_a_fraction_of_the_run() -> None:
    fraction, steps = rates(101, warmup_steps=0, warmup_fraction=0.1), rates(101, warmup_steps=11)
    assert [fraction(step) for step in range(101)] == [steps(step) for step in range(101)]


def test_no_warmup_starts_at_the_peak() -> None:
    assert rates(10, warmup_steps=0)(0) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"name": "sgd"}, "optimizer.name='sgd': expected one of 'adamw', 'lamb'"),
        ({"schedule": "step"}, "optimizer.schedule='step': expected one of 'linear', 'cosine'"),
        ({"warmup_steps": -1}, "optimizer.warmup_steps=-1: must be 0 or more"),
        ({"schedule": "inverse_sqrt", "warmup_steps": 0}, "needs warmup_steps >= 1"),
        ({"warmup_fraction": 0.1}, "warmup_steps=10000 and warmup_fraction=0.1 both set the l"),
        ({"warmup_fraction": 1.5, "warmup_steps": 0}, "warmup_fraction=1.5: must be between 0 and"),
        ({"peak_learning_rate": -1.0}, "optimizer.peak_learning_rate=-1.0: must be 0 or more"),
        ({"peak_learning_rate": math.nan}, "learning_rate=nan: must be 0 or more and finite"),
        ({"clip_norm": math.inf}, "optimizer.clip_norm=inf: must be 0 or more and finite"),
        (
            {"schedule": "constant", "end_learning_rate": 1e-5},
            "optimizer.end_learning_rate=1e-05 has no effect with schedule='constant'",
        ),
        ({"schedule": "wsd"}, "schedule='wsd' needs decay_steps >= 1 or a decay_fraction"),
        (
            {"schedule": "wsd", "decay_steps": 5, "decay_fraction": 0.5},
            "optimizer.decay_steps=5 and decay_fraction=0.5 both set the length of the decay",
        ),
        ({"schedule": "wsd", "decay_steps": -5}, "optimizer.decay_steps=-5: must be 0 or more"),
        ({"schedule": "wsd", "decay_fraction": 2.0}, "optimizer.decay_fraction=2.0: must be betw"),
        ({"decay_shape": "cubic"}, "optimizer.decay_shape='cubic': expected one of 'linear', '1-"),
        (
            {"decay_shape": "1-sqrt"},
            "optimizer.decay_shape=1-sqrt has no effect with schedule='linear'. Set it to linear, "
            "or schedule to 'wsd'.",
        ),
        ({"end_learning_rate": -1.0}, "optimizer.end_learning_rate=-1.0: must be 0 or more"),
        ({"weight_decay": -0.1}, "optimizer.weight_decay=-0.1: must be 0 or more"),
        ({"clip_norm": -1.0}, "optimizer.clip_norm=-1.0: must be 0 or more"),
        ({"beta2": 1.0}, "optimizer.beta2=1.0: expected 0 <= beta2 < 1"),
        ({"epsilon": 0.0}, "optimizer.epsilon=0.0: must be positive and finite"),
        ({"epsilon": float("inf")}, "optimizer.epsilon=inf: must be positive and finite"),
    ],
)
def test_impossible_optimizers_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        OptimizerConfig(**values)


@dataclasses.dataclass(frozen=True)
class WithoutBeta2:
    """An optimizer that lacks a setting that the other optimizers have."""

    beta1: float = 0.9


def test_settings_of_another_optimizer_must_keep_their_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(optimizer, "OPTIMIZERS", {**optimizer.OPTIMIZERS, "lamb": WithoutBeta2})
    # A config that lists every key, such as config.json, contains this key with its default.
    config = OptimizerConfig(name="lamb", beta1=0.5, beta2=0.999)
    assert config.optimizer == WithoutBeta2(beta1=0.5)
    message = (
        "optimizer.beta2=0.98 has no effect with name='lamb'. Set it to 0.999, or name to 'adamw'"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        OptimizerConfig(name="lamb", beta2=0.98)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"adam_rate_factor": 0.25},
            "optimizer.adam_rate_factor=0.25 has no effect with name='adamw'. Set it to 1.0, or "
            "name to 'muon'.",
        ),
        (
            {"name": "stable_adamw", "momentum": 0.9},
            "optimizer.momentum=0.9 has no effect with name='stable_adamw'. Set it to 0.95, or "
            "name to 'muon'.",
        ),
    ],
)
def test_settings_of_muon_and_adamw_are_not_confused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        OptimizerConfig(**values)


def test_a_config_returns_its_optimizer_and_schedule() -> None:
    config = OptimizerConfig(name="lamb", beta2=0.98, clip_norm=0.5, schedule="cosine")
    assert config.optimizer == optimizer.Lamb(beta2=0.98, clip_norm=0.5)
    assert config.decay == Cosine(end_learning_rate=0.0)
    assert OptimizerConfig().optimizer == optimizer.AdamW()


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({}, "adamw at 0.001; 10 steps of warm-up, linear decay to 0"),
        (
            {"name": "lamb", "schedule": "cosine", "end_learning_rate": 1e-5},
            "lamb at 0.001; 10 steps of warm-up, cosine decay to 1e-05",
        ),
        (
            {"warmup_steps": 1, "schedule": "wsd", "decay_steps": 1},
            "adamw at 0.001; 1 step of warm-up, constant learning rate, then linear decay to 0 "
            "over the last 1 step",
        ),
        (
            {"name": "stable_adamw", "warmup_steps": 0, "schedule": "constant"},
            "stable_adamw at 0.001; constant learning rate",
        ),
        (
            {"warmup_steps": 0, "warmup_fraction": 0.06, "schedule": "inverse_sqrt"},
            "adamw at 0.001; 60 steps of warm-up, inverse square-root decay",
        ),
        (
            {
                "name": "muon",
                "adam_rate_factor": 0.5,
                "schedule": "wsd",
                "decay_fraction": 0.2,
                "decay_shape": "1-sqrt",
            },
            "muon at 0.001 for the matrices in the layers, adamw at 0.0005 for all other "
            "parameters; 10 steps of warm-up, constant learning rate, then 1-sqrt decay to 0 over "
            "the last 200 steps",
        ),
    ],
)
def test_an_optimizer_is_described(values: dict[str, Any], line: str) -> None:
    config = OptimizerConfig(**({"peak_learning_rate": 1e-3, "warmup_steps": 10} | values))
    assert describe_optimizer(config, 1_000) == line


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_stores_the_documented_number_of_moments(name: OptimizerName) -> None:
    config = OptimizerConfig(name=name)
    state = make_optimizer(config).init({"encoder.layers.0.ffn.up.kernel": jnp.zeros((3, 5))})
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.shape == (3, 5)]
    assert len(moments) == config.optimizer.moments


def test_a_warmup_longer_than_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup_steps=10000 is more than the run's 500 steps"):
        make_schedule(OptimizerConfig(), 500)


def test_biases_and_layer_norm_do_not_decay() -> None:
    config = variant("tiny", vocab_size=8, norm="pre")
    names = Pretraining(config, ComputeConfig(dtype="float32")).definition.shapes
    for name, shape in names.items():
        # Embedding tables and kernels are matrices; biases and LayerNorm scales are vectors.
        assert decays(name) == (len(shape.shape) == 2), name
    assert sum(map(decays, names)) == 3 + 2 * 6 + 3


PARAMS = {"a.kernel": (6, 5), "b.token": (7, 4), "a.bias": (5,), "norm.scale": (4,)}
DECAYED = {"a.kernel", "b.token"}


def draw(seed: int, deviation: float = 1.0) -> Tree:
    rng = np.random.default_rng(seed)
    return {
        name: (deviation * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in PARAMS.items()
    }


def run(config: OptimizerConfig, gradients: list[Tree]) -> Tree:
    """Return the parameters after our optimizer has applied the given gradients."""
    transformation = make_optimizer(config)
    params: Any = draw(0)
    state = transformation.init(params)
    update = jax.jit(transformation.update)
    rates = LearningRates(config, len(gradients))
    for gradient, rate in zip(gradients, rates, strict=True):
        updates, state = update(gradient, state, params, learning_rate=rate)
        params = jax.tree.map(np.add, params, jax.device_get(updates))
    return params


@pytest.mark.parametrize("clip_norm", [0.0, 1.0])
def test_lamb_follows_its_paper(clip_norm: float) -> None:
    """Compare with algorithm 2 in You et al. 2020, in float64, with phi(z) = z and clipping.

    Biases and LayerNorm parameters take a plain Adam step, as in the released implementations.
    """
    config = OptimizerConfig(
        name="lamb",
        peak_learning_rate=0.02,
        warmup_steps=3,
        weight_decay=0.3,
        clip_norm=clip_norm,
    )
    gradients = [draw(seed, 0.1 * seed) for seed in range(1, 9)]
    rate = make_schedule(config, len(gradients))
    x = {name: value.astype(np.float64) for name, value in draw(0).items()}
    m = {name: np.zeros_like(value) for name, value in x.items()}
    v = {name: np.zeros_like(value) for name, value in x.items()}
    for t, gradient in enumerate(gradients, start=1):
        norm = np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in gradient.values()))
        factor = clip_norm / norm if clip_norm and norm > clip_norm else 1.0
        for name in x:
            g = gradient[name] * factor
            m[name] = config.beta1 * m[name] + (1 - config.beta1) * g
            v[name] = config.beta2 * v[name] + (1 - config.beta2) * g**2
            m_hat = m[name] / (1 - config.beta1**t)
            v_hat = v[name] / (1 - config.beta2**t)
            update = m_hat / (np.sqrt(v_hat) + config.epsilon)
            if name in DECAYED:
                update = update + config.weight_decay * x[name]
                update = update * np.linalg.norm(x[name]) / np.linalg.norm(update)
            x[name] = x[name] - float(rate(t - 1)) * update
    for name, value in run(config, gradients).items():
        assert_allclose(value, x[name], rtol=0, atol=2e-6, err_msg=name)


def test_decay_shrinks_only_matrices() -> None:
    # With a zero gradient, only the decay remains: each step multiplies x by 1 - rate * decay.
    config = OptimizerConfig(
        peak_learning_rate=0.1, warmup_steps=0, schedule="constant", weight_decay=0.5
    )
    zeros = {name: np.zeros(shape, np.float32) for name, shape in PARAMS.items()}
    for name, value in run(config, [zeros, zeros]).items():
        factor = 0.95**2 if name in DECAYED else 1.0
        assert_allclose(value, draw(0)[name] * factor, rtol=1e-6, err_msg=name)


@pytest.mark.parametrize("matrices", [0, 2])
@pytest.mark.parametrize("vectors", [0, 3])
def test_the_norm_of_joined_vectors_is_the_norm_of_all_gradients(
    matrices: int, vectors: int
) -> None:
    shapes = [(3, 4)] * matrices + [(5,), (7,), (1,)][:vectors] + [()]
    gradients = [np.random.default_rng(0).standard_normal(shape) for shape in shapes]
    named = {f"{index}": jnp.asarray(x, jnp.float32) for index, x in enumerate(gradients)}
    expected = np.linalg.norm(np.concatenate([x.ravel() for x in gradients]))
    assert_allclose(transformations._norm_of_joined(named), expected, rtol=1e-6)


def test_vectors_are_joined_only_on_gpus_without_sharded_parameters() -> None:
    gradients = {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(5), "scale": jnp.ones(7)}

    def joins(platform: str, divided: set[str]) -> bool:
        def norm(gradients: dict[str, jax.Array]) -> jax.Array:
            with use_layout(Layout(lambda x, axes: x, lambda *args: None, divided.__contains__)):
                return global_norm(gradients)

        traced = jax.jit(norm).trace(gradients)
        return "concatenate" in traced.lower(lowering_platforms=(platform,)).as_text()

    assert joins("cuda", set()) and joins("cuda", {"batch"})
    assert not joins("cuda", {"batch", "embed"}) and not joins("cuda", {"ffn"})
    assert not joins("cpu", set()) and not joins("tpu", set())


def test_clipping_bounds_the_norm_of_all_gradients_together() -> None:
    # After one step, Adam's first moment is (1 - beta1) x the gradient.
    gradient = draw(1, 3.0)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
    for clip_norm, factor in [(1.0, 1 / norm), (0.0, 1.0), (2 * norm, 1.0)]:
        config = OptimizerConfig(clip_norm=clip_norm, warmup_steps=0)
        clipped = make_optimizer(config)
        params: Any = draw(0)
        state = clipped.update(gradient, clipped.init(params), params, learning_rate=1.0)[1]
        moments = [part.mu for part in state if hasattr(part, "mu")][0]
        for name in PARAMS:
            assert_allclose(moments[name], 0.1 * factor * gradient[name], rtol=1e-5)
