"""Test training a custom task: it matches plain optax, resumes exactly, and runs on any mesh."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from bert_jax.runs.trainer import Trainer
from bert_jax.tasks.custom import CustomTask
from bert_jax.tasks.task import weighted_mean
from bert_jax.training.evaluation import TrainingDiverged

FEATURES, ROWS = 4, 8


class Regression(CustomTask):
    loss_terms = {"squared_error": 1.0}

    def build(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, 1, rngs=rngs)

    def metrics(self, model: Any, batch: Any, dropout_key: jax.Array | None) -> Any:
        error = jnp.square(model(batch["x"])[:, 0] - batch["y"])
        return {"squared_error": weighted_mean(error, jnp.ones_like(error))}


class Numbers:
    """Batches of random numbers; batch n is a function of the seed and n."""

    def __init__(self, *, seed: int = 0, num_batches: int = 1_000, batch_size: int = ROWS):
        self.identity: dict[str, object] = {"seed": seed}
        self.batch_size = batch_size
        self._seed, self._num_batches = seed, num_batches

    def batch(self, step: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([self._seed, step])
        x = rng.standard_normal((self.batch_size, FEATURES), np.float32)
        return {"x": x, "y": x.sum(axis=1)}

    @contextmanager
    def batches(self, start_step: int = 0, *, rows: Any = None) -> Iterator[Iterator[Any]]:
        steps = range(start_step, self._num_batches)
        yield ({name: x[rows] for name, x in self.batch(step).items()} for step in steps)


@pytest.fixture
def make() -> Callable[..., Trainer]:
    def trainer(*, learning_rate: float = 0.1, devices: int = 1, **arguments: Any) -> Trainer:
        mesh = jax.make_mesh(
            (devices, 1, 1),
            ("data", "fsdp", "tensor"),
            axis_types=(jax.sharding.AxisType.Auto,) * 3,
            devices=jax.devices()[:devices],
        )
        return Trainer(Regression(), optax.adam(learning_rate), mesh=mesh, **arguments)

    return trainer


def numbers_of(state: Any) -> dict[str, np.ndarray]:
    return {name: np.asarray(x) for name, x in state.params.items()}


def test_steps_match_plain_optax(make: Callable[..., Trainer]) -> None:
    trainer, loader, optimizer = make(), Numbers(), optax.adam(0.1)
    state = trainer.init()
    params: Any = numbers_of(state)
    opt_state = optimizer.init(params)

    def loss(params: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
        predicted = batch["x"] @ params["kernel"] + params["bias"]
        return jnp.mean(jnp.square(predicted[:, 0] - batch["y"]))

    for step in range(5):
        batch = loader.batch(step)
        value, gradient = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        params = optax.apply_updates(params, updates)
        state, metrics = trainer.step(state, batch)
        assert metrics.keys() == {"squared_error", "loss", "gradient_norm"}
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-6)
        np.testing.assert_allclose(metrics["gradient_norm"], optax.tree.norm(gradient), rtol=1e-5)
    for name, value in numbers_of(state).items():
        np.testing.assert_allclose(value, params[name], rtol=1e-5, atol=1e-6)


def test_fit_matches_a_loop_of_steps_and_calls_back(make: Callable[..., Trainer]) -> None:
    trainer, loader, seen = make(), Numbers(), []
    trainer.on_step(lambda step, metrics: seen.append((step, metrics["loss"])), every=3)
    fitted = trainer.fit(loader, 7)
    state, losses = trainer.init(), []
    for step in range(7):
        state, metrics = trainer.step(state, loader.batch(step))
        losses.append(float(metrics["loss"]))
    assert seen == [(3, losses[2]), (6, losses[5]), (7, losses[6])]
    assert losses[-1] < losses[0] / 2
    for name, value in numbers_of(state).items():
        np.testing.assert_array_equal(value, numbers_of(fitted)[name])


def test_fit_resumes_exactly(make: Callable[..., Trainer], tmp_path: Path) -> None:
    whole = make().fit(Numbers(), 9)
    make().fit(Numbers(), 4, work_dir=tmp_path, save_every=3)
    steps: list[int] = []
    again = make()
    again.on_step(lambda step, metrics: steps.append(step))
    resumed = again.fit(Numbers(), 9, work_dir=tmp_path, save_every=3)
    assert steps == [5, 6, 7, 8, 9]
    for name, value in numbers_of(whole).items():
        np.testing.assert_array_equal(value, numbers_of(resumed)[name])
    np.testing.assert_array_equal(make().fit(Numbers(), 9, work_dir=tmp_path).step, 9)
    with pytest.raises(ValueError, match="steps=8: .* was trained for 9 steps. Set steps to at"):
        make().fit(Numbers(), 8, work_dir=tmp_path)
    with pytest.raises(ValueError, match="another run.*\n.*batches.seed"):
        make().fit(Numbers(seed=1), 12, work_dir=tmp_path)


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_every_mesh_gives_the_same_result(
    make: Callable[..., Trainer], accumulation_steps: int
) -> None:
    one = make().fit(Numbers(), 4)
    many = make(devices=4, accumulation_steps=accumulation_steps).fit(Numbers(), 4)
    for name, value in numbers_of(one).items():
        np.testing.assert_allclose(value, numbers_of(many)[name], rtol=1e-5, atol=1e-6)


def test_initial_parameters(make: Callable[..., Trainer]) -> None:
    kernel = np.full((FEATURES, 1), 2.0, np.float32)
    state = make(initial={"kernel": kernel}).init()
    np.testing.assert_array_equal(state.params["kernel"], kernel)
    message = r"initial: kernel has the shape \(1, 4\), but the model's parameter has \(4, 1\)"
    with pytest.raises(ValueError, match=message):
        make(initial={"kernel": kernel.T})
    with pytest.raises(ValueError, match=r"\+ weight"):
        make(initial={"weight": kernel})


def test_initial_parameters_are_in_the_state_of_the_optimizer() -> None:
    kernel = np.full((FEATURES, 1), 2.0, np.float32)
    optimizer = optax.contrib.schedule_free_sgd(0.1)
    trainer = Trainer(Regression(), optimizer, initial={"kernel": kernel})
    state = trainer.init()
    np.testing.assert_array_equal(state.opt_state.z["kernel"], kernel)
    state, _ = trainer.step(state, Numbers().batch(0))
    assert int(state.step) == 1


def test_an_optimizer_without_state_is_saved(tmp_path: Path) -> None:
    def fit(steps: int, optimizer: optax.GradientTransformation, **arguments: Any) -> Any:
        return Trainer(Regression(), optimizer).fit(Numbers(), steps, **arguments)

    whole = fit(4, optax.sgd(0.1))
    fit(2, optax.sgd(0.1), work_dir=tmp_path)
    resumed = fit(4, optax.sgd(0.1), work_dir=tmp_path)
    for name, value in numbers_of(whole).items():
        np.testing.assert_array_equal(value, numbers_of(resumed)[name])
    with pytest.raises(ValueError, match=r"another optimizer(.*\n)+.*\+ .*trace"):
        fit(5, optax.sgd(0.1, momentum=0.9), work_dir=tmp_path)


def test_a_module_may_have_parameters_of_another_type() -> None:
    class Half(Regression):
        def build(self, rngs: nnx.Rngs) -> Any:
            return nnx.Linear(FEATURES, 1, param_dtype=jnp.bfloat16, rngs=rngs)

    kernel = np.full((FEATURES, 1), 2.0, np.float32)
    state = Trainer(Half(), optax.sgd(0.1), initial={"kernel": kernel}).init()
    assert state.params["kernel"].dtype == jnp.bfloat16


def test_mistakes_are_refused(make: Callable[..., Trainer], tmp_path: Path) -> None:
    trainer = make()
    with pytest.raises(ValueError, match="steps=5: the loader has only 3 batches"):
        trainer.fit(Numbers(num_batches=3), 5)
    with pytest.raises(ValueError, match=r"batch: the arrays have \[7, 8\] rows"):
        trainer.step(trainer.init(), {"x": np.zeros((8, 4)), "y": np.zeros(7)})
    with pytest.raises(ValueError, match="batch_size=9 is not divisible by the 2 parts"):
        make(devices=2).fit(Numbers(batch_size=9), 1)
    with pytest.raises(ValueError, match="batch_size=8 is not divisible by 6 .*accumulation_steps"):
        make(devices=2, accumulation_steps=3).fit(Numbers(), 1)
    with pytest.raises(ValueError, match="batch: expected arrays .*, but z is a scalar"):
        trainer.step(trainer.init(), {**Numbers().batch(0), "z": 1.0})
    with pytest.raises(ValueError, match="batch: expected arrays .*, but it is empty"):
        trainer.step(trainer.init(), {})
    with pytest.raises(ValueError, match=r"mesh: its axes are \('data',\); expected \('data', 'fs"):
        Trainer(Regression(), optax.sgd(0.1), mesh=jax.make_mesh((1,), ("data",)))
    for arguments in (dict(steps=0), dict(steps=1, save_every=0), dict(steps=1, report_every=0)):
        with pytest.raises(ValueError, match="all of them must be at least 1"):
            trainer.fit(Numbers(), **arguments)
    with pytest.raises(ValueError, match="every=0"):
        trainer.on_step(print, every=0)
    diverging = make(learning_rate=np.inf)
    with pytest.raises(TrainingDiverged):
        diverging.fit(Numbers(), 2, work_dir=tmp_path, save_every=1)
    with pytest.raises(TrainingDiverged):
        diverging.fit(Numbers(), 2)


def test_a_loss_term_cannot_have_the_name_of_a_metric() -> None:
    class Nameless(Regression):
        loss_terms = {"loss": 1.0}

    with pytest.raises(ValueError, match="'loss' is reserved for a metric that the train step"):
        Trainer(Nameless(), optax.sgd(0.1))


def test_a_task_without_loss_terms_is_refused() -> None:
    class Pointless(Regression):
        loss_terms = {}

    with pytest.raises(ValueError, match="loss_terms: Pointless has none"):
        Trainer(Pointless(), optax.sgd(0.1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda metrics: {"error": metrics["squared_error"]}, "'squared_error' is missing from t"),
        (lambda metrics: {"squared_error": metrics["squared_error"].sum}, "Expected a sum and a w"),
        (lambda metrics: metrics | {"loss": metrics["squared_error"]}, "metrics: 'loss' is reserv"),
    ],
)
def test_metrics_that_do_not_fit_are_refused(change: Callable[[Any], Any], message: str) -> None:
    class Wrong(Regression):
        def metrics(self, model: Any, batch: Any, dropout_key: jax.Array | None) -> Any:
            return change(super().metrics(model, batch, dropout_key))

    trainer = Trainer(Wrong(), optax.sgd(0.1))
    with pytest.raises(ValueError, match=message):
        trainer.step(trainer.init(), Numbers().batch(0))


def test_weights_without_a_loss_term_are_refused() -> None:
    class Weightless(Regression):
        def loss_weights(self, batch: Any) -> dict[str, jax.Array]:
            return {}

    trainer = Trainer(Weightless(), optax.sgd(0.1))
    with pytest.raises(ValueError, match="is missing from the result of `loss_weights`, which ha"):
        trainer.step(trainer.init(), Numbers().batch(0))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (lambda: nnx.Dropout(0.1, rngs=nnx.Rngs(0)), "Rng(Key|Count)"),
        (lambda: nnx.BatchNorm(1, rngs=nnx.Rngs(0)), "BatchStat"),
    ],
)
def test_a_module_with_unsupported_state_is_refused(layer: Callable[[], Any], kind: str) -> None:
    class Other(Regression):
        def build(self, rngs: nnx.Rngs) -> Any:
            return nnx.Sequential(nnx.Linear(FEATURES, 1, rngs=rngs), layer())

    with pytest.raises(ValueError, match=f"is a {kind}. Use only nnx.Param"):
        Trainer(Other(), optax.sgd(0.1))
