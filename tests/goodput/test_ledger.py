"""Test what the ledger measures, and what remains of it after a kill or an error."""

import os
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bert_jax.goodput.account import Account
from bert_jax.goodput.entries import GOODPUT_NAME, read_entries
from bert_jax.goodput.ledger import SET_ASIDE_NAME, Ledger
from bert_jax.goodput.text import goodput_lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(ledger: Ledger, path: Path, step: int = 0) -> AbstractContextManager[None]:
    return ledger.open(
        path, step=step, total_steps=9, peak_flops=None, devices="1 x cpu", processes=1
    )


def test_every_second_is_counted_once(tmp_path: Path) -> None:
    clock = Clock()
    ledger = Ledger(clock=clock)
    clock.now += 2
    ledger.switch("training_prep")
    clock.now += 3
    with opened(ledger, tmp_path):
        ledger.switch("productive")
        clock.now += 5
        with ledger.during("evaluation"):
            clock.now += 7
        clock.now += 1
        ledger.move(0.5, "productive", "program_startup")
        ledger.step = 4
        ledger.trained(tokens=30, positions=40, flops=50)
        ledger.flush()
        assert ledger.fraction() == pytest.approx(5.5 / 18)
        clock.now += 2
        assert ledger.fraction() == pytest.approx(7.5 / 20)
        ledger.finish("finished")
    goodput = ledger.goodput()
    assert goodput is not None and goodput.total_seconds == pytest.approx(20, abs=0.01)
    found = {name: seconds for name, seconds in goodput.seconds.items() if seconds}
    assert found == pytest.approx(
        {
            "tpu_initialization": 2,
            "training_prep": 3,
            "productive": 7.5,
            "program_startup": 0.5,
            "evaluation": 7,
        }
    )
    assert (goodput.state, goodput.step, goodput.fill_rate) == ("finished", 4, 0.75)
    assert Account(read_entries(tmp_path / GOODPUT_NAME)).goodput() is not None
    assert goodput_lines(goodput)[0].startswith("goodput    37.5% of 20.0s were spent on training")


def test_an_error_is_recorded(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), opened(Ledger(), tmp_path):
        raise ZeroDivisionError("no weights")
    entry = read_entries(tmp_path / GOODPUT_NAME)[-1]
    assert (entry.state, entry.error) == ("failed", "ZeroDivisionError: no weights")


def test_an_explained_error_is_recorded_with_its_explanation(tmp_path: Path) -> None:
    explanations = {ConnectionError: "process 1 has ended"}
    for error, recorded in [
        (ConnectionError("Gloo failed"), "process 1 has ended"),
        (ZeroDivisionError("no weights"), "ZeroDivisionError: no weights"),
    ]:
        with (
            pytest.raises(type(error)),
            Ledger().open(
                tmp_path,
                step=0,
                total_steps=9,
                peak_flops=None,
                devices="",
                processes=2,
                explain=lambda raised: explanations.get(type(raised)),
            ),
        ):
            raise error
        assert read_entries(tmp_path / GOODPUT_NAME)[-1].error == recorded


def test_compilation_is_counted_once(tmp_path: Path) -> None:
    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        time.sleep(0.2)
        return x + 1

    @jax.jit
    def outer(x: jax.Array) -> jax.Array:
        time.sleep(0.1)
        return inner(x) * 2

    ledger = Ledger()
    with opened(ledger, tmp_path):
        ledger.switch("productive")
        began = time.perf_counter()
        outer(jnp.ones(3)).block_until_ready()
        compiled = time.perf_counter() - began
        time.sleep(0.1)
    goodput = ledger.goodput()
    assert goodput is not None
    assert 0.3 <= goodput.seconds["program_startup"] <= compiled
    assert 0.1 <= goodput.seconds["productive"] <= compiled - 0.3 + 0.2


_CHILD = """
import sys, time
from pathlib import Path
from bert_jax.goodput.ledger import Ledger
from bert_jax.processes import command_begins

command_begins()
ledger = Ledger()
facts = dict(step=0, total_steps=9, peak_flops=None, devices="", processes=1)
with ledger.open(Path(sys.argv[1]), **facts):
    ledger.switch("productive")
    print("ready", flush=True)
    while True:
        ledger.step += 1
        ledger.flush()
"""


def test_a_killed_process_leaves_its_entries(tmp_path: Path) -> None:
    began = time.time()
    command = [sys.executable, "-c", _CHILD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.2)
        child.send_signal(signal.SIGKILL)
    path = tmp_path / GOODPUT_NAME
    with path.open("ab") as file:
        file.write(b'{"event": "progress", "time": 17')  # Leave the last line incomplete.
    before = read_entries(path)
    assert len(before) > 10
    account = Account(before).goodput()
    assert account is not None and account.state is None
    # The first start includes the time that the process took to import JAX.
    assert began - 0.1 <= account.began <= before[0].time
    assert account.seconds["tpu_initialization"] > 0.1
    with opened(Ledger(), tmp_path, step=3):
        pass
    entries = read_entries(path)
    assert entries[: len(before)] == before and len(entries) == len(before) + 2
    goodput = Account(entries).goodput()
    assert goodput is not None
    assert (goodput.starts, goodput.killed) == (2, 1)
    assert goodput.repeated_steps == before[-1].step - 3
    assert goodput.seconds["infrastructure_recovery_from_disruption"] > 0


def test_an_entry_is_written_regularly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_jax.goodput.ledger._POLL_SECONDS", 0.01)
    monkeypatch.setattr("bert_jax.goodput.ledger._ENTRY_SECONDS", 0.05)
    with opened(Ledger(), tmp_path):
        time.sleep(0.5)
        entries = read_entries(tmp_path / GOODPUT_NAME)
    assert 4 <= len(entries) <= 12
    assert time.time() - entries[-1].time < 0.5


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b'{"event": "progress"}',
        b'{"event": "party", "time": 1, "step": 1}',
        b'{"event": "start", "time": 1, "step": 1, "seconds": {}}',
        b'{"event": "progress", "time": 1, "step": 1.5}',
        b'{"event": "progress", "time": NaN, "step": 1}',
        b'{"event": "progress", "time": 1, "step": 1, "seconds": {"fun": 1}}',
        b'{"event": "end", "time": 1, "step": 1}',
        b"\xff",
    ],
)
def test_a_damaged_ledger_does_not_stop_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    path = tmp_path / GOODPUT_NAME
    path.write_bytes(line + b"\n")
    with pytest.raises(ValueError, match="line 1: this is not an entry"):
        read_entries(path)
    with opened(Ledger(), tmp_path):
        pass
    assert SET_ASIDE_NAME in caplog.text
    assert (tmp_path / SET_ASIDE_NAME).read_bytes() == line + b"\n"
    assert [entry.event for entry in read_entries(path)] == ["start", "end"]


def test_a_ledger_that_cannot_be_written_does_not_stop_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / GOODPUT_NAME).mkdir()
    with opened(Ledger(), tmp_path):
        pass
    assert caplog.text.count("Training continues without a goodput ledger") == 1
    ledger = Ledger()
    with opened(ledger, tmp_path / "..", step=0):

        def fails(descriptor: int, data: bytes) -> int:
            raise OSError(28, os.strerror(28))

        with monkeypatch.context() as patch:
            patch.setattr("bert_jax.goodput.entries.os.write", fails)
            ledger.flush()
        assert ledger.fraction() is None
    assert "No space left on device" in caplog.text


def test_recording_a_step_takes_microseconds(tmp_path: Path) -> None:
    ledger = Ledger()
    with opened(ledger, tmp_path):
        began = time.perf_counter()
        for step in range(10_000):
            ledger.switch("data_stall")
            ledger.switch("productive")
            ledger.move(0.0, "data_stall", "productive")
            ledger.step = step
        seconds = (time.perf_counter() - began) / 10_000
    assert seconds < 100e-6  # A call takes about 3 microseconds on an idle machine.
