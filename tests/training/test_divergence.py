"""Test that runs skip outliers, roll back after a divergence, and resume exactly from any step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bert_jax.tasks.task import Task
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import (
    CheckpointConfig,
    NeededToRollBack,
    RollbackTargets,
    steps_in,
)
from bert_jax.training.distributed import StopRequest
from bert_jax.training.divergence import (
    DivergenceConfig,
    Guard,
    Observed,
    guard_of,
    guarded,
    judge,
    with_guard,
)
from bert_jax.training.evaluation import HeldOutMetrics, TrainingDiverged
from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.loop import Trainer
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer
from bert_jax.training.phase import HostBatch, Intervals, Phase
from bert_jax.training.reports import DivergenceReport
from bert_jax.training.rollback import Recovery
from bert_jax.training.sharding import MeshConfig, local_rows, make_mesh, to_global
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import StepInputs, make_evaluation_step, make_train_step

ROWS, DIM, STEPS, SEED = 8, 8, 44, 3
CONFIG = OptimizerConfig(peak_learning_rate=0.02, warmup_steps=2, schedule="constant")
PLAIN = make_optimizer(CONFIG)
WINDOW = DivergenceConfig(
    window_steps=8, max_deviations=8.0, max_outliers=2, max_rollbacks=2, margin_steps=3
)
# If a batch's targets are multiplied by this factor, its loss grows by the square of the factor.
SPIKE = 30.0


@dataclass
class Recorder:
    """A reporter that keeps the reports of a run."""

    losses: dict[int, float] = field(default_factory=dict)
    skipped: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, float] = field(default_factory=dict)
    reports: list[DivergenceReport] = field(default_factory=list)

    def train(self, step: int, metrics: Mapping[str, float], **details: Any) -> None:
        if "loss" in metrics:
            self.losses[step] = metrics["loss"]
        self.skipped[step] = metrics.get("skipped", 0.0)

    def evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        self.held_out[step] = metrics["mlm_loss"]

    def divergence(self, report: DivergenceReport) -> None:
        self.reports.append(report)

    def merged(self, later: Recorder) -> Recorder:
        """Return the reports that a log contains after a later run has resumed from this one."""
        reports = {(x.kind, x.step): x for x in [*self.reports, *later.reports]}
        return Recorder(
            self.losses | later.losses,
            self.skipped | later.skipped,
            self.held_out | later.held_out,
            sorted(reports.values(), key=lambda x: (x.step, x.kind == "rollback")),
        )


class MemoryCheckpointer:
    """A checkpointer that keeps states in memory, for tests that do not test files."""

    def __init__(self) -> None:
        self.states: dict[int, TrainState] = {}
        self.interim: set[int] = set()
        self.evaluated: set[int] = set()

    def __enter__(self) -> MemoryCheckpointer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def latest_step(self) -> int | None:
        return max(self.states, default=None)

    def latest_was_evaluated(self) -> bool:
        return self.latest_step() in self.evaluated

    def save(
        self,
        state: TrainState,
        metrics: Any,
        *,
        rollback_targets: RollbackTargets | None = None,
        interim: bool = False,
    ) -> None:
        self.states[int(state.step)] = jax.device_get(state)
        if interim:
            self.interim.add(int(state.step))
        if metrics:
            self.evaluated.add(int(state.step))

    def raise_if_failed(self, *, wait: bool = False) -> None:
        pass

    def load(self, step: int, abstract: TrainState) -> TrainState:
        return jax.tree.map(lambda x, a: jax.device_put(x, a.sharding), self.states[step], abstract)

    def restore(self, abstract: TrainState) -> TrainState:
        return self.load(max(self.states), abstract)

    def step_to_roll_back_to(self, targets: RollbackTargets, last: int) -> int | None:
        steps = [step for step in self.states if step not in self.interim]
        before = [step for step in targets.permitted(steps) if step <= last]
        return targets.newest(steps) or min(before, default=None)


KEPT = CheckpointConfig(keep_last=1, keep_best=0)


@dataclass
class Bench:
    """Compiled steps on four devices, and runs with planted factors in their targets."""

    task: Task
    config: DivergenceConfig
    intervals: Intervals = Intervals(report=1, evaluate=11, save=5)

    def __post_init__(self) -> None:
        self.mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
        self.optimizer = guarded(PLAIN, self.config)
        self.step = make_train_step(self.task, self.optimizer, self.mesh)
        self.evaluation = make_evaluation_step(self.task, self.mesh)
        self.batches_used: list[int] = []

    def fresh(self) -> TrainState:
        return init_state(self.task.definition, self.optimizer, self.mesh, SEED)

    def abstract(self) -> TrainState:
        return abstract_state(self.task.definition, self.optimizer, self.mesh)

    def batch(self, step: int, factors: Mapping[int, float]) -> HostBatch:
        rng = np.random.default_rng(step)
        return {
            "x": rng.standard_normal((ROWS, DIM), np.float32),
            "y": rng.standard_normal((ROWS, 4), np.float32) * np.float32(factors.get(step, 1.0)),
            "weight": np.ones(ROWS, np.float32),
        }

    def phase(self, name: str, first: int, count: int, factors: Mapping[int, float]) -> Phase:
        def batches(start: int) -> Iterator[HostBatch]:
            for step in range(start, count):
                self.batches_used.append(first + step)
                yield self.batch(first + step, factors)

        def held_out() -> Iterator[HostBatch]:
            yield self.batch(10_000, {})

        return Phase(
            name=name,
            first_step=first,
            num_steps=count,
            batch_size=ROWS,
            train_step=self.step,
            batches=lambda start: closing(batches(start)),
            evaluate=HeldOutMetrics(self.mesh, self.evaluation, ROWS, held_out),
            flops=lambda batch: 1.0,
        )

    def run(
        self,
        saved: Path | MemoryCheckpointer,
        factors: Mapping[int, float],
        *,
        stop: StopRequest | None = None,
        phases: Callable[[Bench], list[Phase]] | None = None,
        learning_rates: Any = None,
    ) -> tuple[TrainState, Recorder]:
        """Start or resume a run, and return its last state and its reports."""
        recorder = Recorder()
        files = Checkpointer(saved, KEPT, {}) if isinstance(saved, Path) else None
        with files or saved as checkpointer:
            resumes = checkpointer.latest_step() is not None
            recovery = Recovery(self.config, checkpointer, self.abstract(), self.fresh)
            trainer = Trainer(
                mesh=self.mesh,
                seed=SEED,
                learning_rates=learning_rates or LearningRates(CONFIG, STEPS),
                checkpointer=checkpointer,
                reporter=recorder,
                intervals=self.intervals,
                stop=stop or StopRequest(),
                recovery=recovery if self.config.enabled else None,
            )
            state = checkpointer.restore(self.abstract()) if resumes else self.fresh()
            parts = phases(self) if phases else [self.phase("only", 0, STEPS, factors)]
            state, _ = trainer.run(state, parts)
        return state, recorder


@pytest.fixture(scope="module")
def bench(make_task: Any) -> Bench:
    return Bench(make_task(DIM), WINDOW)


PLANTED = {20: SPIKE, 21: SPIKE, 22: SPIKE, 30: SPIKE}


@pytest.fixture(scope="module")
def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainState, Recorder]:
    return bench.run(MemoryCheckpointer(), PLANTED)


def advance(bench: Bench, state: TrainState, batch: HostBatch, rate: Any) -> Any:
    placed = to_global(batch, bench.mesh, local_rows(bench.mesh, ROWS), ROWS)
    return bench.step(state, placed, StepInputs(np.uint32(SEED), rate))


def assert_same(one: Any, other: Any) -> None:
    for left, right in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert_array_equal(left, right)


def assert_same_reports(one: Recorder, other: Recorder) -> None:
    assert one.losses == other.losses and one.skipped == other.skipped
    assert one.held_out == other.held_out
    assert [str(x) for x in one.reports] == [str(x) for x in other.reports]


def stopping_after(count: int) -> StopRequest:
    """Return a request that takes effect after `count` steps."""

    class Stop(StopRequest):
        calls = 0

        def stop_now(self) -> bool:
            self.calls += 1
            return self.calls >= count

        def raise_if_stopping(self) -> None:
            pass

    return Stop()


def test_a_guard_without_outliers_changes_nothing(bench: Bench) -> None:
    plain = Bench(bench.task, DivergenceConfig())
    expected, reference = plain.run(MemoryCheckpointer(), {})
    state, recorder = bench.run(MemoryCheckpointer(), {})
    assert_same(state.params, expected.params)
    assert recorder.losses == reference.losses and recorder.held_out == reference.held_out
    assert not recorder.reports and set(recorder.skipped.values()) == {0.0}
    assert guarded(PLAIN, DivergenceConfig()) is PLAIN


def test_a_guarded_step_needs_no_copies_of_the_state_on_a_cpu(make_task: Any) -> None:
    features, mesh = 1 << 15, make_mesh(MeshConfig(), jax.devices()[:1])
    task = make_task(features)
    x = jax.ShapeDtypeStruct((ROWS, features), np.float32)
    batch = {"x": x, "y": jax.ShapeDtypeStruct((ROWS, 4), np.float32)}
    batch["weight"] = jax.ShapeDtypeStruct((ROWS,), np.float32)
    inputs = StepInputs(np.uint32(SEED), np.float32(0.02))
    temporary = {}
    for config in (DivergenceConfig(), WINDOW):
        optimizer = guarded(PLAIN, config)
        step = make_train_step(task, optimizer, mesh)
        state = abstract_state(task.definition, optimizer, mesh)
        compiled = step.lower(state, batch, inputs).compile()
        temporary[config] = compiled.memory_analysis().temp_size_in_bytes
    kernel_bytes = 4 * 4 * features
    assert temporary[WINDOW] < temporary[DivergenceConfig()] + kernel_bytes / 2


def test_an_outlier_is_skipped(bench: Bench) -> None:
    state, recorder = bench.run(MemoryCheckpointer(), {20: SPIKE})
    (report,) = recorder.reports
    assert report.kind == "skip" and report.step == 21 and report.values["batch"] == 20
    assert re.match(r"step 21: skipped batch 20, since its loss of .* exceeds", str(report))
    assert report.values["loss"] > report.values["loss_limit"]
    assert recorder.skipped[21] == 1.0 and 21 not in recorder.losses
    # The update is not applied, but the step counter advances, and with it the batches.
    assert int(state.step) == STEPS
    one = bench.fresh()
    rates = LearningRates(CONFIG, STEPS)
    for step in range(22):
        before = jax.device_get(one)
        one, recorded = advance(bench, one, bench.batch(step, {20: SPIKE}), rates[step])
        if step == 20:
            assert_same(jax.device_get(one).params, before.params)
            assert_same(jax.device_get(one).opt_state.optimizer, before.opt_state.optimizer)
            assert int(one.step) == int(before.step) + 1 == 21
    assert recorder.losses[22] == float(recorded["loss"].sum)


def test_consecutive_outliers_roll_back(bench: Bench) -> None:
    bench.batches_used.clear()
    state, recorder = bench.run(MemoryCheckpointer(), {20: SPIKE, 21: SPIKE, 22: SPIKE})
    kinds = [(report.kind, report.step) for report in recorder.reports]
    assert kinds == [("skip", 21), ("skip", 22), ("skip", 23), ("rollback", 23)]
    rollback = recorder.reports[-1]
    # The newest checkpoint at least three steps before batch 20 is the one at step 15.
    assert rollback.values == {"from_step": 15, "first_batch": 15, "last_batch": 22, "number": 1}
    assert "Rolled back to the checkpoint at step 15 and skipped batches 15 to 22" in str(rollback)
    # Batch 23 was dispatched before the divergence was noticed, and is used again.
    assert bench.batches_used == [*range(24), *range(23, STEPS)]
    guard = guard_of(state)
    assert guard is not None and int(guard.rollbacks) == 1 and int(state.step) == STEPS


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_rolls_back(bench: Bench, factor: float) -> None:
    state, recorder = bench.run(MemoryCheckpointer(), {20: factor})
    assert [report.kind for report in recorder.reports] == ["skip", "rollback"]
    assert recorder.reports[-1].values["from_step"] == 15
    assert re.match(r"step 21 \(batch 20\): its loss is (nan|inf)", str(recorder.reports[-1]))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_the_state_after_a_rollback_is_the_checkpoint(bench: Bench) -> None:
    saved = MemoryCheckpointer()
    bench.run(saved, {20: float("nan")}, stop=stopping_after(21))
    # The run was asked to stop at the step that diverged: it first rolls back, and then stops.
    assert max(saved.states) == 21
    good, after = saved.states[15], saved.states[21]
    assert_same(after.params, good.params)
    assert_same(after.opt_state.optimizer, good.opt_state.optimizer)


@pytest.mark.parametrize("stop", [16, 21, 22, 23, 24, 25, 33])
def test_a_resumed_run_is_identical(
    bench: Bench, whole: tuple[TrainState, Recorder], stop: int
) -> None:
    """Stop while the window fills, between two skipped steps, at the rollback, and after it."""
    saved = MemoryCheckpointer()
    _, first = bench.run(saved, PLANTED, stop=stopping_after(stop))
    state, second = bench.run(saved, PLANTED)
    assert_same(state, whole[0])
    assert_same_reports(first.merged(second), whole[1])


@pytest.mark.slow
@pytest.mark.parametrize("stop", [16, 22, 23])
def test_a_resumed_run_with_files_is_identical(
    bench: Bench, tmp_path: Path, whole: tuple[TrainState, Recorder], stop: int
) -> None:
    """Check that only the newest checkpoint and those needed for a rollback are kept."""
    _, first = bench.run(tmp_path, PLANTED, stop=stopping_after(stop))
    before = steps_in(tmp_path)
    assert before == {16: [10, 15, 16], 22: [15, 20, 22], 23: [15, 23]}[stop]
    state, second = bench.run(tmp_path, PLANTED)
    assert_same(state, whole[0])
    assert_same_reports(first.merged(second), whole[1])
    assert steps_in(tmp_path) == [40, 44]


@pytest.mark.parametrize("lost", [21, 22, 23, 24])
def test_a_killed_run_is_identical(
    bench: Bench, whole: tuple[TrainState, Recorder], lost: int
) -> None:
    """End a run with an error at a batch, so that only its regular checkpoints are left."""

    def phases(bench: Bench) -> list[Phase]:
        phase = bench.phase("only", 0, STEPS, PLANTED)

        def batches(start: int) -> Any:
            def until_lost() -> Iterator[HostBatch]:
                for step in range(start, STEPS):
                    if step == lost:
                        raise KeyboardInterrupt
                    yield bench.batch(step, PLANTED)

            return closing(until_lost())

        return [replace(phase, batches=batches)]

    saved = MemoryCheckpointer()
    with pytest.raises(KeyboardInterrupt):
        bench.run(saved, PLANTED, phases=phases)
    state, recorder = bench.run(saved, PLANTED)
    assert_same(state, whole[0])
    for step, loss in recorder.losses.items():
        assert loss == whole[1].losses[step]


def test_a_rollback_never_returns_to_a_discarded_state(bench: Bench) -> None:
    """Check that the discarded checkpoint at step 20 is not used for the second rollback."""
    nan = float("nan")
    state, recorder = bench.run(MemoryCheckpointer(), {22: nan, 25: nan})
    rollbacks = [x.values for x in recorder.reports if x.kind == "rollback"]
    assert [(x["from_step"], x["last_batch"]) for x in rollbacks] == [(15, 22), (15, 25)]
    guard = guard_of(state)
    assert guard is not None and guard.discarded.tolist() == [16, 26]


def test_the_run_ends_when_it_may_not_roll_back_any_more(bench: Bench) -> None:
    nan = float("nan")
    saved = MemoryCheckpointer()
    with pytest.raises(TrainingDiverged) as caught:
        bench.run(saved, {12: nan, 22: nan, 32: nan})
    text = str(caught.value)
    assert text.startswith("step 33 (batch 32): its loss is nan")
    assert "has already rolled back 2 times" in text and "divergence.max_rollbacks" in text
    # With a higher limit, the same run continues from its newest checkpoint.
    more = Bench(bench.task, replace(WINDOW, max_rollbacks=3))
    state, recorder = more.run(saved, {12: nan, 22: nan, 32: nan})
    assert int(state.step) == STEPS and recorder.reports[-1].values["number"] == 3


def test_without_a_checkpoint_the_run_starts_over(bench: Bench) -> None:
    state, recorder = bench.run(MemoryCheckpointer(), {2: float("nan")})
    assert "Rolled back to the initial state and skipped batches 0 to 2" in str(
        recorder.reports[-1]
    )
    assert int(state.step) == STEPS and 3 in steps_in_run(recorder)


def steps_in_run(recorder: Recorder) -> list[int]:
    return [report.step for report in recorder.reports]


def test_a_divergence_in_the_last_step(bench: Bench) -> None:
    saved = MemoryCheckpointer()
    state, recorder = bench.run(saved, {STEPS - 1: float("nan")})
    assert int(state.step) == STEPS == max(saved.states)
    assert STEPS in recorder.held_out and recorder.reports[-1].kind == "rollback"


def test_the_window_starts_empty_in_each_phase(bench: Bench) -> None:
    larger = {step: 3.0 for step in range(20, STEPS)}

    def phases(bench: Bench) -> list[Phase]:
        return [bench.phase("a", 0, 20, larger), bench.phase("b", 20, STEPS - 20, larger)]

    state, recorder = bench.run(MemoryCheckpointer(), {}, phases=phases)
    assert not recorder.reports
    # In a single phase, all batches from step 20 on are outliers.
    with pytest.raises(TrainingDiverged):
        bench.run(MemoryCheckpointer(), larger)


def test_an_update_that_breaks_the_parameters_rolls_back(bench: Bench) -> None:
    """Use an infinite learning rate at step 24, which makes the parameters infinite."""

    class Rates:
        def __getitem__(self, step: int) -> np.float32:
            return np.float32(np.inf) if step == 24 else np.float32(0.02)

    state, recorder = bench.run(MemoryCheckpointer(), {}, learning_rates=Rates())
    assert [report.kind for report in recorder.reports] == ["rollback"]
    assert "the update made these values NaN or infinite: ['dense.bias']" in str(
        recorder.reports[0]
    )
    assert recorder.reports[0].values["from_step"] == 20
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))


def test_limits_are_the_median_and_the_median_absolute_deviation() -> None:
    rng = np.random.default_rng(0)
    window = rng.lognormal(size=9).astype(np.float32)
    config = DivergenceConfig(window_steps=9, max_deviations=4.0)
    zero, discarded = jnp.int32(0), jnp.zeros(2, jnp.int32)
    norms, steps = jnp.full(9, 2.0), jnp.int32(9)
    guard = Guard(jnp.asarray(window), norms, steps, zero, jnp.bool_(0), zero, discarded)
    _, verdict = judge(guard, Observed(jnp.float32(0.0), jnp.float32(0.0)), config)
    median = np.median(window)
    deviation = 1.4826 * np.median(np.abs(window - median))
    assert float(verdict.loss_limit) == pytest.approx(median + 4 * deviation, rel=1e-6)
    # All norms are equal, so that the spread is 1% of them.
    assert float(verdict.norm_limit) == pytest.approx(2.0 + 4 * 0.02, rel=1e-6)
    filling = guard._replace(steps=jnp.int32(8))
    _, verdict = judge(filling, Observed(jnp.float32(1e9), jnp.float32(1e9)), config)
    assert not verdict.skipped and np.isinf(verdict.loss_limit)


def test_an_old_window_of_another_size_is_not_restored(bench: Bench, tmp_path: Path) -> None:
    state = with_guard(bench.fresh(), steps=8, rollbacks=1)
    with Checkpointer(tmp_path, CheckpointConfig(keep_best=0), {}) as checkpointer:
        checkpointer.save(state, None)
        checkpointer.raise_if_failed(wait=True)
        same = guard_of(checkpointer.restore(bench.abstract()))
        other = Bench(bench.task, replace(WINDOW, window_steps=16))
        new = guard_of(checkpointer.restore(other.abstract()))
        plain = Bench(bench.task, DivergenceConfig())
        assert guard_of(checkpointer.restore(plain.abstract())) is None
    assert same is not None and int(same.steps) == 8 and int(same.rollbacks) == 1
    assert new is not None and int(new.steps) == 0 and new.losses.shape == (16,)


@dataclass
class Saved:
    step: int


@pytest.mark.parametrize(
    ("targets", "kept"),
    [
        (None, []),
        (RollbackTargets(25), [20, 30]),
        (RollbackTargets(30), [30]),
        (RollbackTargets(45), [30]),
        (RollbackTargets(5), [10, 20, 30]),
        (RollbackTargets(25, range(11, 30)), [10, 30]),
        (RollbackTargets(5, range(11, 30)), [10, 30]),
    ],
)
def test_checkpoints_needed_to_roll_back_are_kept(
    targets: RollbackTargets | None, kept: list[int]
) -> None:
    checkpoints = [Saved(step) for step in (10, 20, 30, 40)]
    policy = NeededToRollBack(lambda step: step == 40, lambda: targets)
    chosen = policy.should_preserve(checkpoints, context=None)
    assert [each.step for each, keep in zip(checkpoints, chosen, strict=True) if keep] == kept


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window_steps": 4}, "divergence.window_steps=4: the median of so few steps"),
        ({"window_steps": -1}, "divergence.window_steps=-1: must be at least 0"),
        ({"max_deviations": 0.0}, "divergence.max_deviations=0.0: must be positive"),
        ({"max_rollbacks": -1}, "divergence.max_rollbacks=-1: must be at least 0"),
    ],
)
def test_impossible_settings_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        DivergenceConfig(**values)
