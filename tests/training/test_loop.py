"""Test the training loop: the order of its operations, what it reports, and how it stops."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import CheckpointConfig
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.phase import Intervals, Phase
from bert_jax.training.state import TrainState

KEEP_ALL = CheckpointConfig(keep_last=100, keep_best=0)


@dataclass
class RecordingCheckpointer:
    events: list[tuple[str, int]]

    def save(self, state: TrainState, metrics: Any) -> None:
        self.events.append(("save", int(state.step)))

    def raise_if_failed(self, *, wait: bool = False) -> None:
        pass


def test_the_order_of_operations(bench: Any) -> None:
    recorder = bench.recorder()
    events = recorder.events

    def train_step(state: TrainState, batch: Any, inputs: Any) -> Any:
        # Count the steps, since reading `state.step` would wait for the previous step.
        events.append(("step", sum(kind == "step" for kind, _ in events)))
        return bench.train_step(state, batch, inputs)

    trainer = bench.trainer(RecordingCheckpointer(events), recorder, Intervals(1, 3, 6))
    phases = [replace(phase, train_step=train_step) for phase in bench.phases(events)]
    state, finished = trainer.run(bench.fresh(), phases)
    assert finished and int(state.step) == bench.num_steps
    expected = []
    for step in range(bench.num_steps):
        # The number of a batch or step is the number of updates before it; reports, evaluations and
        # saves also count the current update. A step is reported while the next one runs, unless an
        # evaluation or a save needs its metrics.
        decided = step % 3 == 0
        expected += [("batch", step), ("step", step)]
        expected += [("report", step)] if step and not decided else []
        after = step + 1
        expected += [("report", after)] if after % 3 == 0 or after == bench.num_steps else []
        expected += [("evaluate", after)] if after % 3 == 0 or after == bench.num_steps else []
        expected += [("save", after)] if after % 6 == 0 or after == bench.num_steps else []
    assert events == expected


def test_the_initial_parameters_are_evaluated_on_request(bench: Any, whole: Any) -> None:
    recorder = bench.recorder()
    trainer = bench.trainer(RecordingCheckpointer([]), recorder, Intervals(1, 5, 4))
    trainer = replace(trainer, evaluate_first=True)
    state, finished = trainer.run(bench.fresh(), bench.phases())
    assert finished and recorder.events[0] == ("evaluate", 0)
    # The evaluation changes neither the state nor the other metrics.
    expected_state, expected = whole
    assert recorder.losses == expected.losses
    assert {step: recorder.held_out[step] for step in (5, 10)} == expected.held_out
    for one, other in zip(*map(jax.tree.leaves, (state, expected_state)), strict=True):
        np.testing.assert_array_equal(one, other)
    without = bench.recorder()
    trainer = bench.trainer(RecordingCheckpointer([]), without, Intervals(1, 0, 4))
    replace(trainer, evaluate_first=True).run(bench.fresh(), bench.phases())
    assert not without.held_out


def test_every_evaluated_state_is_saved_if_the_best_are_kept(bench: Any) -> None:
    events: list[tuple[str, int]] = []
    intervals = Intervals(100, 3, 4, save_evaluated=True)
    bench.trainer(RecordingCheckpointer(events), None, intervals).run(bench.fresh(), bench.phases())
    assert events == [("save", step) for step in (3, 4, 6, 8, 9, 10)]


@pytest.mark.parametrize(("steps", "count"), [(12, 2), (10, 3), (7, 4), (5, 2), (211, 4), (3, 5)])
def test_evaluations_are_spread_evenly_over_every_epoch(steps: int, count: int) -> None:
    intervals = Intervals(1, Fraction(steps, count), 1)
    evaluated = [step for step in range(1, 4 * steps + 1) if intervals.evaluates(step)]
    # Use Decimal, which represents exact halves without rounding errors.
    interval = Decimal(steps) / count
    nearest = [
        int((k * interval).to_integral_value(ROUND_HALF_UP)) for k in range(1, 4 * count + 1)
    ]
    assert evaluated == sorted(set(nearest))
    first = evaluated[: min(count, steps)]
    assert first[-1] == steps
    assert evaluated == [epoch * steps + step for epoch in range(4) for step in first]


@pytest.mark.parametrize("interval", [1, 3, 1000])
def test_an_integer_interval_evaluates_at_its_multiples(interval: int) -> None:
    intervals = Intervals(1, interval, 1)
    evaluated = [step for step in range(1, 3001) if intervals.evaluates(step)]
    assert evaluated == list(range(interval, 3001, interval))


def test_the_time_of_a_callback_counts_for_the_next_report(bench: Any) -> None:
    pause = 0.05

    class Slow(bench.recorder):
        def train(self, step: int, metrics: Any, **details: Any) -> None:
            super().train(step, metrics, **details)
            time.sleep(pause)

    recorder = Slow()
    trainer = bench.trainer(RecordingCheckpointer([]), recorder, Intervals(1, 5, 4))
    trainer.run(bench.fresh(), bench.phases())
    seconds = {line["step"]: line["seconds"] for line in recorder.details}
    # The first step's interval does not include a callback, since no report precedes it.
    assert len(seconds) == bench.num_steps
    assert all(seconds[step] >= pause for step in range(2, bench.num_steps + 1))


def test_reports_add_up(bench: Any) -> None:
    recorder = bench.recorder()
    trainer = bench.trainer(RecordingCheckpointer([]), recorder, Intervals(4, 100, 100))
    trainer.run(bench.fresh(), bench.phases())
    by_step = {line["step"]: line for line in recorder.details}
    assert list(by_step) == [4, 8, 10]
    assert [line["steps"] for line in recorder.details] == [4, 4, 2]
    # A step has four rows, or eight from step 6 on; each row has one "token" and 100 FLOPs.
    assert [line["real_tokens"] for line in recorder.details] == [16, 24, 16]
    assert [line["flops"] for line in recorder.details] == [1600, 2400, 1600]
    for step, line in by_step.items():
        assert line["learning_rate"] == pytest.approx(float(bench.rates[step - 1]))
        assert 0 <= line["stall_seconds"] < line["seconds"]
        assert "tokens" not in line


def test_batches_are_closed_with_their_phase(bench: Any) -> None:
    events: list[str] = []

    def watched(phase: Phase) -> Phase:
        @contextmanager
        def batches(start: int) -> Iterator[Any]:
            events.append(f"open {phase.name}")
            with phase.batches(start) as stream:
                try:
                    yield stream
                finally:
                    events.append(f"close {phase.name}")

        return replace(phase, batches=batches)

    trainer = bench.trainer(RecordingCheckpointer([]), None, Intervals(1, 100, 100))
    trainer.run(bench.fresh(), [watched(phase) for phase in bench.phases()])
    assert events == ["open phase1", "close phase1", "open phase2", "close phase2"]
    with pytest.raises(TrainingDiverged):
        trainer.run(bench.fresh(), [watched(phase) for phase in bench.phases(poison=1)])
    assert events[4:] == ["open phase1", "close phase1"]


def test_a_run_reports_every_step_and_learns(bench: Any, whole: Any) -> None:
    losses = whole[1].losses
    assert list(losses) == list(range(1, bench.num_steps + 1))
    assert losses[10] < losses[1]


def test_evaluation_counts_each_example_once(bench: Any, whole: Any) -> None:
    state, recorder = whole
    assert list(recorder.held_out) == [5, 10]
    params = jax.device_get(state.params)
    batches = [bench.example_batch([99, 0], 4), bench.example_batch([99, 1], 4, counted=3)]
    errors = [
        ((b["x"] @ params["dense.kernel"] + params["dense.bias"] - b["y"]) ** 2).sum(axis=1)
        for b in batches
    ]
    expected = np.concatenate([errors[0], errors[1][:3]]).mean()
    assert recorder.held_out[10]["mlm_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("intervals", [Intervals(1, 5, 4), Intervals(50, 50, 6)], ids=str)
def test_a_nan_stops_the_run_and_is_not_saved(
    bench: Any, tmp_path: Path, intervals: Intervals
) -> None:
    # The batch after five updates belongs to the sixth step, after which a save may be due.
    recorder = bench.recorder()
    with pytest.raises(TrainingDiverged, match="^step 6: .*, so training has diverged") as error:
        bench.run(tmp_path, recorder, intervals=intervals, poison=5)
    for name in ("loss", "mlm_loss", "gradient_norm"):
        assert f" {name} is nan," in str(error.value)
    assert "tokens" not in str(error.value)
    assert 6 not in recorder.losses
    saved = {int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()}
    assert saved == {step for step in range(1, 6) if step % intervals.save == 0}
    if saved:
        state, finished = bench.run(tmp_path, recorder)
        assert finished
        assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_a_nan_in_the_held_out_loss_stops_the_run_too(bench: Any, tmp_path: Path) -> None:
    def evaluation_step(params: Any, batch: Any) -> Any:
        metrics = dict(bench.evaluation_step(params, batch))
        metrics["mlm_loss"] = metrics["mlm_loss"]._replace(sum=jnp.float32("inf"))
        return metrics

    recorder = bench.recorder()
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        trainer = bench.trainer(checkpointer, recorder, Intervals(1, 5, 5))
        phases = replace(bench, evaluation_step=evaluation_step).phases()
        with pytest.raises(TrainingDiverged, match="step 5: held-out mlm_loss is inf"):
            trainer.run(bench.fresh(), phases)
        assert checkpointer.latest_step() is None
