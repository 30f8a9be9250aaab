"""The loop: its order, its stops, and that a run cut in two is the run in one piece."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from numpy.testing import assert_array_equal

from bert_jax.tasks.protocol import Task
from bert_jax.training.checkpoint import CheckpointConfig, Checkpointer
from bert_jax.training.interruption import StopRequest
from bert_jax.training.loop import HostBatch, Intervals, Phase, Trainer, TrainingDiverged
from bert_jax.training.optimizer import OptimizerConfig, make_optimizer, make_schedule
from bert_jax.training.sharding import MeshConfig, make_mesh
from bert_jax.training.state import TrainState, abstract_state, init_state
from bert_jax.training.step import make_evaluation_step, make_train_step

DIM, SEED, STEPS = 8, 3, 10
CONFIG = OptimizerConfig(peak_learning_rate=0.05, warmup_steps=2)
SCHEDULE = make_schedule(CONFIG, STEPS)
OPTIMIZER = make_optimizer(CONFIG, SCHEDULE)
INTERVALS = Intervals(report=1, evaluate=5, save=4)
KEEP_ALL = CheckpointConfig(keep_last=100, keep_best=0)


def example_batch(seed: list[int], size: int, counted: int | None = None) -> HostBatch:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((size, DIM), np.float32),
        "y": rng.standard_normal((size, 4), np.float32),
        "weight": (np.arange(size) < (size if counted is None else counted)).astype(np.float32),
    }


@dataclass
class Recorder:
    """Stands for the reporter, and keeps what everything else did, in order."""

    events: list[tuple[str, int]] = field(default_factory=list)
    losses: dict[int, float] = field(default_factory=dict)
    held_out: dict[int, dict[str, float]] = field(default_factory=dict)
    details: list[dict[str, Any]] = field(default_factory=list)

    def train(self, step: int, metrics: Any, **details: Any) -> None:
        self.events.append(("report", step))
        self.losses[step] = metrics["loss"]
        self.details.append({"step": step, **details, **metrics})

    def evaluation(self, step: int, metrics: Any) -> None:
        self.events.append(("evaluate", step))
        self.held_out[step] = dict(metrics)


@dataclass
class Bench:
    """What the runs of this file share: one compiled step."""

    mesh: Mesh
    task: Task
    train_step: Any
    evaluation_step: Any

    def phases(self, events: list | None = None, poison: int | None = None) -> list[Phase]:
        """Six steps of 4 rows, then four of 8; step `poison` sees a batch that is no number."""

        def phase(name: str, first: int, count: int, size: int) -> Phase:
            def batches(start: int) -> Iterator[HostBatch]:
                for step in range(start, count):
                    if events is not None:
                        events.append(("batch", first + step))
                    batch = dict(example_batch([first, step], size))
                    if first + step == poison:
                        batch["y"] = batch["y"] * np.float32("nan")
                    yield batch

            def held_out() -> Iterator[HostBatch]:
                # Seven rows in batches of four: the last is ragged.
                yield example_batch([99, 0], 4)
                yield example_batch([99, 1], 4, counted=3)

            return Phase(
                name=name,
                first_step=first,
                num_steps=count,
                batch_size=size,
                evaluation_batch_size=4,
                batches=batches,
                held_out=held_out,
                flops_per_step=100.0 * size,
            )

        return [phase("phase1", 0, 6, 4), phase("phase2", 6, 4, 8)]

    def fresh(self) -> TrainState:
        return init_state(self.task.definition, OPTIMIZER, self.mesh, SEED)

    def trainer(
        self,
        checkpointer: Any,
        recorder: Recorder | None,
        intervals: Intervals,
        stop: Any = None,
        train_step: Any = None,
    ) -> Trainer:
        return Trainer(
            mesh=self.mesh,
            train_step=train_step or self.train_step,
            evaluation_step=self.evaluation_step,
            schedule=SCHEDULE,
            checkpointer=checkpointer,
            reporter=recorder,
            intervals=intervals,
            stop=stop or StopRequest(),
        )

    def run(
        self,
        directory: Path,
        recorder: Recorder,
        *,
        intervals: Intervals = INTERVALS,
        stop: Any = None,
        poison: int | None = None,
    ) -> tuple[TrainState, bool]:
        """Runs or goes on, as the command does."""
        with Checkpointer(directory, KEEP_ALL, {}) as checkpointer:
            if checkpointer.latest_step() is None:
                state = self.fresh()
            else:
                abstract = abstract_state(self.task.definition, OPTIMIZER, self.mesh)
                state = checkpointer.restore(abstract)
            trainer = self.trainer(checkpointer, recorder, intervals, stop)
            return trainer.run(state, self.phases(poison=poison))


@pytest.fixture(scope="module")
def bench(make_task: Callable[[int], Task]) -> Bench:
    mesh = make_mesh(MeshConfig(data=2, fsdp=2), jax.devices()[:4])
    task = make_task(DIM)
    train_step = make_train_step(task, OPTIMIZER, mesh, seed=SEED)
    return Bench(mesh, task, train_step, make_evaluation_step(task, mesh))


@pytest.fixture(scope="module")
def whole(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainState, Recorder]:
    """The run in one piece."""
    recorder = Recorder()
    state, finished = bench.run(tmp_path_factory.mktemp("whole"), recorder)
    assert finished
    return state, recorder


@dataclass
class RecordingCheckpointer:
    events: list[tuple[str, int]]

    def save(self, state: TrainState, metrics: Any) -> None:
        self.events.append(("save", int(state.step)))


def test_the_order_of_operations(bench: Bench) -> None:
    recorder = Recorder()
    events = recorder.events

    def train_step(state: TrainState, batch: Any) -> Any:
        # Counted here and not by `state.step`, which would wait for the step before.
        events.append(("step", sum(kind == "step" for kind, _ in events)))
        return bench.train_step(state, batch)

    trainer = bench.trainer(
        RecordingCheckpointer(events), recorder, Intervals(1, 3, 6), train_step=train_step
    )
    state, finished = trainer.run(bench.fresh(), bench.phases(events))
    assert finished and int(state.step) == STEPS
    expected = []
    for step in range(STEPS):
        # A batch and a step are named by the updates before them; a report, an evaluation and a
        # save by the updates that they tell of. A step is reported once the next is under way,
        # unless something is to be decided by it.
        decided = step % 3 == 0
        expected += [("batch", step), ("step", step)]
        expected += [("report", step)] if step and not decided else []
        after = step + 1
        expected += [("report", after)] if after % 3 == 0 or after == STEPS else []
        expected += [("evaluate", after)] if after % 3 == 0 or after == STEPS else []
        expected += [("save", after)] if after % 6 == 0 or after == STEPS else []
    assert events == expected


def test_reports_add_up(bench: Bench) -> None:
    recorder = Recorder()
    trainer = bench.trainer(RecordingCheckpointer([]), recorder, Intervals(4, 100, 100))
    trainer.run(bench.fresh(), bench.phases())
    by_step = {line["step"]: line for line in recorder.details}
    assert list(by_step) == [4, 8, 10]
    assert [line["steps"] for line in recorder.details] == [4, 4, 2]
    # Four rows a step, eight from step 6 on; one "token" and 100 FLOPs a row.
    assert [line["real_tokens"] for line in recorder.details] == [16, 24, 16]
    assert [line["flops"] for line in recorder.details] == [1600, 2400, 1600]
    for step, line in by_step.items():
        assert line["learning_rate"] == pytest.approx(float(SCHEDULE(step - 1)))
        assert 0 <= line["stall_seconds"] < line["seconds"]
        assert "tokens" not in line


def test_other_processes_train_without_a_reporter(bench: Bench, whole: Any) -> None:
    trainer = bench.trainer(RecordingCheckpointer([]), None, Intervals(1, 5, 4))
    state, finished = trainer.run(bench.fresh(), bench.phases())
    assert finished
    assert_same_state(state, whole[0])


def test_a_seed_learns(whole: tuple[TrainState, Recorder]) -> None:
    losses = whole[1].losses
    assert list(losses) == list(range(1, STEPS + 1))
    assert losses[10] < losses[1]


def test_evaluation_counts_each_example_once(bench: Bench, whole: Any) -> None:
    state, recorder = whole
    assert list(recorder.held_out) == [5, 10]
    params = jax.device_get(state.params)
    batches = [example_batch([99, 0], 4), example_batch([99, 1], 4, counted=3)]
    errors = [
        ((b["x"] @ params["dense.kernel"] + params["dense.bias"] - b["y"]) ** 2).sum(axis=1)
        for b in batches
    ]
    expected = np.concatenate([errors[0], errors[1][:3]]).mean()
    assert recorder.held_out[10]["mlm_loss"] == pytest.approx(expected, rel=1e-5)


def assert_same_state(found: TrainState, expected: TrainState) -> None:
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_array_equal(ours, theirs)


@dataclass
class StopAt:
    step: int

    def stop_now(self, step: int) -> bool:
        return step >= self.step


@pytest.mark.parametrize("stop_at", [1, 4, 6, 9])
def test_a_stopped_run_goes_on_as_if_nothing_happened(
    bench: Bench, whole: Any, tmp_path: Path, stop_at: int
) -> None:
    recorder = Recorder()
    state, finished = bench.run(tmp_path, recorder, stop=StopAt(stop_at))
    assert not finished
    assert int(state.step) == stop_at
    assert list(recorder.losses) == list(range(1, stop_at + 1))
    state, finished = bench.run(tmp_path, recorder)
    assert finished
    expected_state, expected = whole
    assert recorder.losses == expected.losses
    assert recorder.held_out[10] == expected.held_out[10]
    assert_same_state(state, expected_state)
    # And a third time there is nothing left to do.
    before = list(recorder.events)
    state, finished = bench.run(tmp_path, recorder)
    assert finished and recorder.events == before
    assert_same_state(state, expected_state)


class Killed(BaseException):
    pass


def test_a_killed_run_repeats_from_its_checkpoint(bench: Bench, whole: Any, tmp_path: Path) -> None:
    class KillAt(StopAt):
        def stop_now(self, step: int) -> bool:
            if step >= self.step:
                raise Killed
            return False

    recorder = Recorder()
    with pytest.raises(Killed):
        bench.run(tmp_path, recorder, stop=KillAt(7))
    assert max(recorder.losses) == 6
    again = Recorder()
    state, finished = bench.run(tmp_path, again)
    assert finished
    expected_state, expected = whole
    # Saved after step 4: 5 and 6 are computed again, to the same numbers.
    assert again.losses == {step: expected.losses[step] for step in range(5, 11)}
    assert {5: again.losses[5], 6: again.losses[6]} == {s: recorder.losses[s] for s in (5, 6)}
    assert_same_state(state, expected_state)


@pytest.mark.parametrize("intervals", [Intervals(1, 5, 4), Intervals(50, 50, 6)], ids=str)
def test_what_is_no_number_stops_the_run_and_is_not_saved(
    bench: Bench, tmp_path: Path, intervals: Intervals
) -> None:
    # The batch after five updates is the sixth step's, which is where a save may be due.
    recorder = Recorder()
    with pytest.raises(TrainingDiverged, match="^step 6: .*, not a finite number") as error:
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


def test_a_held_out_loss_that_is_no_number_stops_the_run_too(bench: Bench, tmp_path: Path) -> None:
    def evaluation_step(params: Any, batch: Any) -> Any:
        metrics = dict(bench.evaluation_step(params, batch))
        metrics["mlm_loss"] = metrics["mlm_loss"]._replace(sum=jnp.float32("inf"))
        return metrics

    recorder = Recorder()
    with Checkpointer(tmp_path, KEEP_ALL, {}) as checkpointer:
        trainer = bench.trainer(checkpointer, recorder, Intervals(1, 5, 5))
        trainer.evaluation_step = evaluation_step
        with pytest.raises(TrainingDiverged, match="step 5: held-out mlm_loss is inf"):
            trainer.run(bench.fresh(), bench.phases())
        assert checkpointer.latest_step() is None


def test_sigterm_is_a_request(bench: Bench, whole: Any, tmp_path: Path) -> None:
    previous = signal.getsignal(signal.SIGTERM)

    class Terminating(Recorder):
        def train(self, step: int, metrics: Any, **details: Any) -> None:
            super().train(step, metrics, **details)
            if step == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    recorder = Terminating()
    with StopRequest() as stop:
        state, finished = bench.run(tmp_path, recorder, stop=stop)
    assert signal.getsignal(signal.SIGTERM) is previous
    # Reported while step 4 was under way; its update is kept.
    assert not finished and int(state.step) == 4
    state, finished = bench.run(tmp_path, Recorder())
    assert finished
    assert_same_state(state, whole[0])
