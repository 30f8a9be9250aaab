"""Test that the heartbeat is current in every activity, and that it never stops a run."""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Any, get_args

import pytest

from bert_jax.goodput.categories import EVALUATION, OTHER, PREPARATION, PRODUCTIVE, SAVE, Activity
from bert_jax.goodput.ledger import Ledger
from bert_jax.training import heartbeat
from bert_jax.training.heartbeat import HEARTBEAT_NAME, STATES, Heartbeat


def content(work_dir: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((work_dir / HEARTBEAT_NAME).read_text("utf-8"))
    return value


def test_every_activity_has_a_state() -> None:
    assert set(STATES) == set(get_args(Activity))


def test_the_file_shows_the_step_and_the_state(tmp_path: Path) -> None:
    now = 100.0
    ledger = Ledger()
    ledger.step = 7
    ledger.switch(PREPARATION)
    beats = Heartbeat(ledger, tmp_path, 50, clock=lambda: now)
    states = []
    for activity, step, now in (
        *((PREPARATION, 7, 100.0), (PRODUCTIVE, 7, 101.0), (PRODUCTIVE, 8, 102.0)),
        *((SAVE, 8, 103.0), (EVALUATION, 8, 104.0), (OTHER, 9, 105.0)),
    ):
        ledger.switch(activity)
        ledger.step = step
        beats.beat()
        values = content(tmp_path)
        assert values["time"] == values["progress_time"] == now and values["pid"] == os.getpid()
        states.append((values["state"], values["step"], values["total_steps"]))
    assert states == [
        *(("starting", 7, 50), ("compiling", 7, 50), ("training", 8, 50)),
        *(("saving", 8, 50), ("evaluating", 8, 50), ("training", 9, 50)),
    ]
    # While nothing changes, the file is written only every ten seconds.
    now = 112.0
    beats.beat()
    assert content(tmp_path)["time"] == 105.0
    now = 116.0
    beats.beat()
    assert (content(tmp_path)["time"], content(tmp_path)["progress_time"]) == (116.0, 105.0)


def test_a_thread_writes_while_the_run_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_LEAST_SECONDS", 0.02)
    monkeypatch.setattr(heartbeat, "_MOST_SECONDS", 0.02)
    ledger = Ledger()
    with Heartbeat(ledger, tmp_path, 3).beating():
        first = content(tmp_path)["time"]
        deadline = time.monotonic() + 30
        while content(tmp_path)["time"] == first:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ledger.step = 3
        ledger.finish("finished")
    assert content(tmp_path)["state"] == "finished" and content(tmp_path)["step"] == 3


def test_the_last_state_of_a_failed_run(tmp_path: Path) -> None:
    with pytest.raises(KeyError), Heartbeat(Ledger(), tmp_path, 3).beating():
        raise KeyError
    assert content(tmp_path)["state"] == "failed"


def test_a_file_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger()
    beats = Heartbeat(ledger, tmp_path / "missing", 3)
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            ledger.step = step
            beats.beat()
    assert caplog.text.count("Training continues without a current heartbeat") == 1
