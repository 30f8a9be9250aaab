"""Test what `Trainer.fit` has in common with the commands: ledger, guard, stops and reports."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from numpy.testing import assert_allclose, assert_array_equal

from bert_jax.runs.status import RunStatus, read_status
from bert_jax.runs.trainer import Trainer
from bert_jax.tasks.custom import CustomTask
from bert_jax.tasks.task import weighted_mean
from bert_jax.training.distributed import StopRequest
from bert_jax.training.divergence import NO_CHECKS, DivergenceConfig
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reports import DivergenceReport, Message, Report, TrainReport

FEATURES, ROWS, STEPS = 4, 8, 24
OPTIMIZER = optax.adam(optax.cosine_decay_schedule(0.1, STEPS))
WINDOW = DivergenceConfig(window_steps=8, max_outliers=2)
ROLLBACKS = DivergenceConfig(max_rollbacks=1, margin_steps=3)


class Regression(CustomTask):
    loss_terms = {"squared_error": 1.0}

    def build(self, rngs: nnx.Rngs) -> Any:
        return nnx.Linear(FEATURES, 1, rngs=rngs)

    def metrics(self, model: Any, batch: Any, dropout_key: jax.Array | None) -> Any:
        error = jnp.square(model(batch["x"])[:, 0] - batch["y"])
        return {"squared_error": weighted_mean(error, jnp.ones_like(error))}


class Numbers:
    """Batches of random numbers; `factors` maps a step to a factor for the targets of its batch."""

    batch_size = ROWS

    def __init__(self, factors: Mapping[int, float] | None = None) -> None:
        self._factors = factors or {}
        self.identity: dict[str, object] = {}

    def batch(self, step: int) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(step)
        x = rng.standard_normal((ROWS, FEATURES), np.float32)
        return {"x": x, "y": x.sum(axis=1) * np.float32(self._factors.get(step, 1.0))}

    @contextmanager
    def batches(self, start_step: int = 0, *, rows: Any = None) -> Iterator[Iterator[Any]]:
        steps = range(start_step, 1_000)
        yield ({name: x[rows] for name, x in self.batch(step).items()} for step in steps)


def make(divergence: DivergenceConfig = NO_CHECKS) -> Trainer:
    return Trainer(Regression(), OPTIMIZER, divergence=divergence)


def without_batches(left_out: set[int]) -> dict[str, Any]:
    """Return the parameters after training with plain optax on all batches but `left_out`."""
    params: Any = {name: np.asarray(x) for name, x in make().init().params.items()}
    opt_state = OPTIMIZER.init(params)

    @jax.jit
    def update(params: Any, opt_state: Any, batch: Any) -> Any:
        def loss(params: Any) -> Any:
            predicted = batch["x"] @ params["kernel"] + params["bias"]
            return jnp.mean(jnp.square(predicted[:, 0] - batch["y"]))

        updates, opt_state = OPTIMIZER.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for step in range(STEPS):
        if step not in left_out:
            params, opt_state = update(params, opt_state, Numbers().batch(step))
    return dict(params)


def assert_parameters(state: Any, expected: Mapping[str, Any]) -> None:
    assert state.params.keys() == expected.keys()
    for name, value in expected.items():
        assert_allclose(state.params[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_run_with_a_work_dir_is_accounted_for(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    reports: list[Report] = []
    work_dir = tmp_path / "run"
    arguments: dict[str, Any] = dict(work_dir=work_dir, save_every=5, report_every=4)
    make().fit(Numbers(), 10, notify=f"cat >> {events}", on_report=reports.append, **arguments)
    make().fit(Numbers(), STEPS, notify=f"cat >> {events}", **arguments)
    status = read_status(work_dir)
    assert isinstance(status, RunStatus) and status.goodput is not None
    assert (status.state, status.step, status.total_steps) == ("finished", STEPS, STEPS)
    assert status.goodput.starts == 2 and status.goodput.repeated_steps == 0
    assert status.goodput.seconds["productive"] > 0
    beat = json.loads((work_dir / "heartbeat.json").read_text())
    assert (beat["state"], beat["step"], beat["total_steps"]) == ("finished", STEPS, STEPS)
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in told] == [
        *(("start", 0), ("end", 10), ("start", 10), ("end", STEPS)),
    ]
    logged = [entry["step"] for entry in read_metrics(work_dir / "metrics.jsonl")]
    assert logged == [4, 5, 8, 10, 12, 15, 16, 20, STEPS]
    lines = [report for report in reports if isinstance(report, TrainReport)]
    assert lines[0].learning_rate is None and "lr " not in str(lines[0])
    assert "tok/s" not in str(lines[0]) and "goodput" in str(lines[0])
    assert isinstance(reports[-1], Message) and reports[-1].text.startswith("goodput")


def test_a_run_without_a_work_dir_still_reports() -> None:
    reports: list[Report] = []
    make().fit(Numbers(), 6, report_every=4, on_report=reports.append)
    assert [report.step for report in reports if isinstance(report, TrainReport)] == [4, 6]
    assert len(reports) == 2


@pytest.mark.parametrize("config", [WINDOW, ROLLBACKS])
def test_a_guard_without_outliers_changes_nothing(config: DivergenceConfig, tmp_path: Path) -> None:
    guarded = make(config).fit(Numbers(), STEPS, work_dir=tmp_path)
    for name, value in make().fit(Numbers(), STEPS).params.items():
        assert_array_equal(guarded.params[name], value)


def test_outliers_are_skipped_as_if_their_batches_did_not_exist() -> None:
    reports: list[Report] = []
    seen: dict[int, float] = {}
    trainer = make(WINDOW)
    trainer.on_step(lambda step, metrics: seen.update({step: metrics["skipped"]}))
    numbers = Numbers({12: 100.0, 13: 100.0, 20: math.nan})
    with pytest.raises(
        TrainingDiverged, match=r"step 21 \(batch 20\): its loss is nan .*max_rollb"
    ):
        trainer.fit(numbers, STEPS, on_report=reports.append)
    skips = [report for report in reports if isinstance(report, DivergenceReport)]
    assert [(x.kind, x.step) for x in skips] == [("skip", 13), ("skip", 14), ("skip", 21)]
    state = make(WINDOW).fit(Numbers({12: 100.0, 13: 100.0}), STEPS)
    assert int(state.step) == STEPS
    assert_parameters(state, without_batches({12, 13}))
    assert list(seen) == list(range(1, 22))
    assert [step for step, skipped in seen.items() if skipped] == [13, 14, 21]


def test_a_loop_of_steps_skips_outliers_too() -> None:
    trainer, numbers, skipped = make(WINDOW), Numbers({12: 100.0}), []
    state = trainer.init()
    for step in range(STEPS):
        state, metrics = trainer.step(state, numbers.batch(step))
        skipped.append(bool(metrics["skipped"]))
    assert np.flatnonzero(skipped).tolist() == [12]
    assert_parameters(state, without_batches({12}))


def test_a_divergence_rolls_back_and_leaves_out_the_batches(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    work_dir = tmp_path / "run"
    reports: list[Report] = []
    state = make(ROLLBACKS).fit(
        Numbers({13: math.inf}),
        STEPS,
        work_dir=work_dir,
        save_every=5,
        notify=f"cat >> {events}",
        on_report=reports.append,
    )
    (rollback,) = (x for x in reports if isinstance(x, DivergenceReport) and x.kind == "rollback")
    for part in (
        "step 14 (batch 13): its loss is inf",
        "The outputs of all layers are finite, but the metric squared_error is not",
        "Rolled back to the checkpoint at step 10 and skipped batches 10 to 13",
    ):
        assert part in str(rollback)
    assert int(state.step) == STEPS
    assert_parameters(state, without_batches({10, 11, 12, 13}))
    kinds = [entry["kind"] for entry in read_metrics(work_dir / "metrics.jsonl")]
    assert kinds.count("rollback") == 1
    told = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert told == ["start", "divergence", "end"]
    status = read_status(work_dir)
    assert isinstance(status, RunStatus) and status.goodput is not None
    assert status.goodput.repeated_steps == 4


def test_a_stopped_run_resumes_exactly(tmp_path: Path) -> None:
    stop, reports = StopRequest(), list[Report]()
    trainer = make(WINDOW)
    trainer.on_step(lambda step, metrics: stop.request() if step == 9 else None)
    arguments: dict[str, Any] = dict(work_dir=tmp_path, save_every=100)
    state = trainer.fit(Numbers(), STEPS, stop=stop, on_report=reports.append, **arguments)
    assert int(state.step) == 10
    assert str(reports[-1]) == "stopped: saved step 10; the same call resumes"
    status = read_status(tmp_path)
    assert isinstance(status, RunStatus) and status.state == "stopped"
    resumed = make(WINDOW).fit(Numbers(), STEPS, **arguments)
    for name, value in make(WINDOW).fit(Numbers(), STEPS).params.items():
        assert_array_equal(resumed.params[name], value)


def test_settings_that_need_a_work_dir_are_refused_without_one() -> None:
    with pytest.raises(ValueError, match="divergence.max_rollbacks=1: a run without work_dir has"):
        make(ROLLBACKS).fit(Numbers(), STEPS)
    with pytest.raises(ValueError, match="notify='true': a run without work_dir sends no"):
        make().fit(Numbers(), STEPS, notify="true")


def test_a_batch_with_the_wrong_number_of_rows_is_refused() -> None:
    class Short(Numbers):
        def batch(self, step: int) -> dict[str, np.ndarray]:
            return {name: x[: -(step == 3) or None] for name, x in super().batch(step).items()}

        @contextmanager
        def batches(self, start_step: int = 0, *, rows: Any = None) -> Iterator[Iterator[Any]]:
            yield (self.batch(step) for step in range(start_step, 1_000))

    with pytest.raises(ValueError, match="batch 3 of the loader has 7 rows, but 8 were requested"):
        make().fit(Short(), STEPS)
