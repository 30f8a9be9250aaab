"""Test that a stopped or killed run resumes and matches an uninterrupted run bit for bit."""

import errno
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import jax
import pytest
from numpy.testing import assert_array_equal

from bert_jax.training.checkpoint import CheckpointNotSaved
from bert_jax.training.checkpoint_checksums import write_checksums
from bert_jax.training.distributed import StopRequest, StopRequested
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.phase import Intervals, Phase
from bert_jax.training.state import TrainState


def assert_same_state(state: TrainState, expected: TrainState) -> None:
    for leaf, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        assert_array_equal(leaf, other)


@dataclass
class StopAt:
    """A request to stop at the n-th check; there is one check per step and per evaluated batch."""

    question: int
    asked: int = 0

    def stop_now(self) -> bool:
        self.asked += 1
        return self.asked >= self.question

    raise_if_stopping = StopRequest.raise_if_stopping


# The evaluation after five steps accounts for checks 6 and 7.
@pytest.mark.parametrize(
    ("question", "stopped_after"), [(1, 1), (4, 4), (5, 5), (6, 5), (7, 5), (8, 6), (11, 9)]
)
def test_a_stopped_run_resumes_exactly(
    bench: Any, whole: Any, tmp_path: Path, question: int, stopped_after: int
) -> None:
    recorder = bench.recorder()
    stop = StopAt(question)
    state, finished = bench.run(tmp_path, recorder, stop=stop)
    assert not finished and stop.asked == question
    assert int(state.step) == stopped_after
    assert list(recorder.losses) == list(range(1, stopped_after + 1))
    assert list(recorder.held_out) == ([5] if stopped_after > 5 else [])
    state, finished = bench.run(tmp_path, recorder)
    assert finished
    expected_state, expected = whole
    assert recorder.losses == expected.losses
    assert recorder.held_out == expected.held_out
    assert_same_state(state, expected_state)
    # When the run is started a third time, it is already finished.
    before = list(recorder.events)
    state, finished = bench.run(tmp_path, recorder)
    assert finished and recorder.events == before
    assert_same_state(state, expected_state)


class Killed(BaseException):
    pass


class KillAt(StopAt):
    def stop_now(self) -> bool:
        if super().stop_now():
            raise Killed
        return False


@pytest.mark.parametrize(
    ("stop", "ended", "evaluated"),
    [
        (StopAt(4), None, [4, 8, 10]),
        (StopAt(6), None, [4, 8, 10]),
        (KillAt(6), Killed, [4, 8, 10]),
        (KillAt(8), Killed, [8, 10]),
    ],
    ids=["stopped before", "stopped during", "killed during", "killed after"],
)
def test_a_missed_evaluation_is_made_up_for(
    bench: Any, tmp_path: Path, stop: StopAt, ended: Any, evaluated: list[int]
) -> None:
    both = Intervals(report=1, evaluate=4, save=4)
    recorder = bench.recorder()
    with pytest.raises(ended) if ended else nullcontext():
        bench.run(tmp_path, recorder, intervals=both, stop=stop)
    assert list(recorder.held_out) == ([] if 4 in evaluated else [4])
    # The run was asked to stop again during the evaluation that it had to catch up on.
    if 4 in evaluated:
        _, finished = bench.run(tmp_path, recorder, intervals=both, stop=StopAt(1))
        assert not finished and not recorder.held_out and max(recorder.losses) == 4
    again = bench.recorder()
    bench.run(tmp_path, again, intervals=both)
    assert [step for what, step in again.events if what == "evaluate"] == evaluated


def test_a_killed_run_repeats_from_its_checkpoint(bench: Any, whole: Any, tmp_path: Path) -> None:
    recorder = bench.recorder()
    with pytest.raises(Killed):
        bench.run(tmp_path, recorder, stop=KillAt(9))
    assert max(recorder.losses) == 6
    again = bench.recorder()
    state, finished = bench.run(tmp_path, again)
    assert finished
    expected_state, expected = whole
    # The last save was after step 4, so steps 5 and 6 are repeated with the same results.
    assert again.losses == {step: expected.losses[step] for step in range(5, 11)}
    assert {5: again.losses[5], 6: again.losses[6]} == {s: recorder.losses[s] for s in (5, 6)}
    assert_same_state(state, expected_state)


def signalling(bench: Any, signum: int, *steps: int) -> Any:
    """Return a reporter that sends this process a signal when one of the steps is reported."""

    class Signalling(bench.recorder):
        def train(self, step: int, metrics: Any, **details: Any) -> None:
            super().train(step, metrics, **details)
            if step in steps:
                os.kill(os.getpid(), signum)

    return Signalling()


SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@pytest.fixture
def hearing_hang_ups() -> Iterator[None]:
    """Restore the default SIGHUP handler, since a suite started with `nohup` ignores SIGHUP."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.mark.usefixtures("interrupts_enabled", "hearing_hang_ups")
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
)
def test_a_signal_requests_a_stop(
    bench: Any, whole: Any, tmp_path: Path, signum: int, code: int
) -> None:
    handlers = [signal.getsignal(number) for number in SIGNALS]
    with StopRequest() as stop:
        state, finished = bench.run(tmp_path, signalling(bench, signum, 3), stop=stop)
    assert stop.exit_code == code
    assert handlers == [signal.getsignal(number) for number in SIGNALS]
    # The signal arrived while step 4 was running; that step's update is kept.
    assert not finished and int(state.step) == 4
    state, finished = bench.run(tmp_path, bench.recorder())
    assert finished
    assert_same_state(state, whole[0])


def test_a_second_interrupt_ends_the_run_at_once(
    bench: Any, tmp_path: Path, interrupts_enabled: None, capfd: pytest.CaptureFixture[str]
) -> None:
    class Twice(StopRequest):
        # Simulate a step that never ends, so that the run cannot stop by itself.
        def stop_now(self) -> bool:
            return False

    with pytest.raises(KeyboardInterrupt), Twice() as stop:
        bench.run(tmp_path, signalling(bench, signal.SIGINT, 2, 3), stop=stop)
    assert capfd.readouterr().err.count("press Ctrl-C again") == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def raising(error: BaseException) -> Any:
    raise error


def without_batch(step: int, error: BaseException) -> Callable[[Phase], Phase]:
    """Return a function that changes a phase: its batches end with an error after `step` steps."""

    def change(phase: Phase) -> Phase:
        @contextmanager
        def batches(start: int) -> Iterator[Any]:
            with phase.batches(start) as whole:
                count = step - phase.first_step - start
                yield chain(islice(whole, count), map(raising, [error])) if count >= 0 else whole

        return replace(phase, batches=batches)

    return change


# Step 5 has been evaluated but not saved when the next batch fails.
@pytest.mark.parametrize(
    ("step", "error"), [(5, OSError("a worker was killed")), (7, KeyError(7)), (7, StopRequested())]
)
def test_a_data_error_loses_no_step(
    bench: Any, whole: Any, tmp_path: Path, step: int, error: Exception
) -> None:
    recorder = bench.recorder()
    change = without_batch(step, error)
    if isinstance(error, StopRequested):
        state, finished = bench.run(tmp_path, recorder, change=change)
        assert not finished and int(state.step) == step
    else:
        with pytest.raises(type(error)) as caught:
            bench.run(tmp_path, recorder, change=change)
        assert caught.value is error
    assert list(recorder.losses) == list(range(1, step + 1))
    state, finished = bench.run(tmp_path, recorder)
    assert finished
    assert_same_state(state, whole[0])
    assert recorder.losses == whole[1].losses
    kept = [event for event in recorder.events if event[0] != "batch"]
    assert kept == [event for event in whole[1].events if event[0] != "batch"]


def test_a_failed_save_of_a_run_without_data_is_reported(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(checkpoint: Path, step: int, metadata: Any) -> None:
        if step == 7:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_checksums(checkpoint, step, metadata)

    monkeypatch.setattr("bert_jax.training.checkpoint_parameters.write_checksums", write)
    change = without_batch(7, OSError("a worker was killed"))
    with (
        caplog.at_level(logging.INFO, "bert_jax"),
        pytest.raises(CheckpointNotSaved, match="No space left.* checkpoint is step 4"),
    ):
        bench.run(tmp_path, bench.recorder(), change=change)
    assert "a worker was killed" in caplog.text and "saved step" not in caplog.text


def test_a_failed_evaluation_loses_no_step(bench: Any, whole: Any, tmp_path: Path) -> None:
    error = OSError("the held-out set is gone")
    recorder = bench.recorder()
    with pytest.raises(OSError, match="is gone"):
        bench.run(
            tmp_path,
            recorder,
            change=lambda phase: replace(phase, evaluate=lambda *_: raising(error)),
        )
    assert list(recorder.losses) == [1, 2, 3, 4, 5] and not recorder.held_out
    state, finished = bench.run(tmp_path, recorder)
    assert finished and recorder.held_out == whole[1].held_out
    assert_same_state(state, whole[0])


def test_a_diverged_state_is_not_saved_when_the_data_fails(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingDiverged, match="step 7"):
        bench.run(
            tmp_path, bench.recorder(), poison=6, change=without_batch(7, OSError("gone too"))
        )
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [4]


def test_a_wait_ends_when_the_process_is_signaled() -> None:
    with StopRequest() as stop:
        stop.while_waiting()
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(StopRequested):
            stop.while_waiting()


def test_an_ignored_interrupt_stays_ignored(interrupts_enabled: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert not stop.stop_now()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


class Forgetful:
    """A checkpointer that saves nothing."""

    def save(self, state: TrainState, metrics: Any) -> None:
        pass

    def raise_if_failed(self, *, wait: bool = False) -> None:
        pass


def test_other_processes_train_without_a_reporter(bench: Any, whole: Any) -> None:
    trainer = bench.trainer(Forgetful(), None, Intervals(1, 5, 4))
    state, finished = trainer.run(bench.fresh(), bench.phases())
    assert finished
    assert_same_state(state, whole[0])
