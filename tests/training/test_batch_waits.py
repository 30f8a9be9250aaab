"""Test how the time that the loop waits for batches is divided into stalls and computing."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.goodput.ledger import Ledger
from bert_jax.tasks.task import Metric
from bert_jax.training import batch_waits
from bert_jax.training.batch_waits import BatchWaits


class Clock:
    """A clock that moves only on request. When a step ends, it pauses until this is noticed."""

    def __init__(self) -> None:
        self.now = 0.0
        self.steps: list[RunningStep] = []
        self._read = threading.Event()

    def __call__(self) -> float:
        if threading.current_thread() is not threading.main_thread():
            self._read.set()
        return self.now

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        for step in self.steps:
            if not step.is_ready() and step.ends <= end:
                self.now = max(self.now, step.ends)
                self._read.clear()
                step.ended.set()
                if step.watched.is_set():
                    assert self._read.wait(10)
        self.now = end


class RunningStep:
    """An array that is ready when its step ends."""

    def __init__(self, ends: float) -> None:
        self.ends, self.ended, self.watched = ends, threading.Event(), threading.Event()

    def is_ready(self) -> bool:
        return self.ended.is_set()

    def block_until_ready(self) -> "RunningStep":
        self.watched.set()
        assert self.ended.wait(10)
        return self


class Loop:
    """A loop that calls `BatchWaits` like the training loop, with given durations."""

    def __init__(self, clock: Clock, ledger: Ledger) -> None:
        self.clock, self.ledger = clock, ledger
        self.free_at = 0.0  # This is the time at which the device will have finished all steps.

    def run(self, waits: BatchWaits, steps: int, step_seconds: float, batch_seconds: float) -> Any:
        """Return the measured waiting time of the device before each step."""
        running: RunningStep | None = None
        stalls = []
        for _ in range(steps):
            metrics = None if running is None else {"loss": Metric(running, running)}
            waits.begin(metrics)  # type: ignore[arg-type]
            if running is not None and waits._stalls:
                assert running.watched.wait(10)
            self.clock.advance(batch_seconds)
            stalls.append(waits.end())
            begins = max(self.clock.now, self.free_at)
            former, running = running, RunningStep(begins + step_seconds)
            self.free_at = running.ends
            self.clock.steps.append(running)
            waits.dispatched()
            # The loop reads the metrics of the previous step, which waits for that step.
            if former is not None and not former.is_ready():
                self.clock.advance(former.ends - self.clock.now)
        return stalls


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    clock = Clock()
    monkeypatch.setattr(batch_waits.time, "perf_counter", clock)
    ledger = Ledger(clock=clock)
    facts: dict[str, Any] = {"peak_flops": None, "devices": "1 x cpu", "processes": 1}
    monkeypatch.setattr("bert_jax.goodput.ledger._POLL_SECONDS", 1e6)
    with ledger.open(tmp_path, step=0, total_steps=9, **facts):
        yield Loop(clock, ledger)


def seconds(loop: Loop) -> dict[str, float]:
    loop.ledger.flush()
    goodput = loop.ledger.goodput()
    assert goodput is not None
    return {name: round(value, 6) for name, value in goodput.seconds.items() if value}


def test_batches_that_are_ready_in_time_cause_no_stalls(loop: Loop) -> None:
    with BatchWaits(loop.ledger) as waits:
        stalls = loop.run(waits, steps=5, step_seconds=1.0, batch_seconds=0.25)
    # The loop waits only for the first batch.
    assert stalls == [0.25, 0, 0, 0, 0]
    found = seconds(loop)
    assert found["data_loading_sync"] == 0.25 and "data_stall" not in found
    assert found["productive"] == pytest.approx(loop.clock.now - 0.25)


def test_slow_batches_cause_stalls_only_after_the_previous_step(loop: Loop) -> None:
    with BatchWaits(loop.ledger) as waits:
        stalls = loop.run(waits, steps=6, step_seconds=1.0, batch_seconds=1.25)
    # At the second batch, nothing is known about steps yet. From then on, the wait is measured.
    assert stalls == [1.25, 1.25, *[pytest.approx(0.25)] * 4]
    found = seconds(loop)
    assert found["data_loading_sync"] == 1.25
    assert found["data_stall"] == pytest.approx(1.25 + 4 * 0.25)
    assert found["productive"] == pytest.approx(4 * 1.0)


def test_the_first_stall_is_estimated_from_the_steps_before(loop: Loop) -> None:
    with BatchWaits(loop.ledger) as waits:
        loop.run(waits, steps=5, step_seconds=1.0, batch_seconds=0.25)
        before = seconds(loop).get("data_stall", 0.0)
        waits.begin({"loss": Metric(loop.clock.steps[-1], loop.clock.steps[-1])})  # type: ignore[arg-type]
        loop.clock.advance(60)
        assert waits.end() == pytest.approx(59, abs=1)
    assert seconds(loop)["data_stall"] - before == pytest.approx(59, abs=1)


def test_the_first_step_of_a_phase_is_compilation(loop: Loop) -> None:
    with BatchWaits(loop.ledger) as waits:
        waits.begin(None)
        waits.end()
        loop.clock.advance(7)  # Tracing and compiling take this long.
        waits.dispatched()
        loop.clock.advance(2)
        waits.new_program()
        waits.begin(None)
        waits.end()
        loop.clock.advance(5)
        waits.dispatched()
    assert seconds(loop) == {"program_startup": 12, "productive": 2}
