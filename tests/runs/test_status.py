"""Test the status of runs that are running, killed, stopped, finished, or have not started."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.goodput.entries import GOODPUT_NAME, Entry
from bert_jax.runs import status as status_module
from bert_jax.runs.ownership import LOCK_NAME, is_locked, only_writer
from bert_jax.runs.status import RunStatus, SweepStatus, read_status

NOW = time.time()
START = Entry(
    *("start", NOW - 90, 0, {"training_prep": 10.0}),
    began=NOW - 100,
    host="node1",
    pid=4711,
    processes=1,
    devices="1 x cpu",
    total_steps=200,
    peak_flops=1e6,
)
TRAINED = Entry("progress", NOW - 40, 50, {"productive": 50.0}, 900, 1000, 2e7)
FINISHED = Entry("end", NOW - 39, 200, {"other": 1.0}, state="finished")
LOG = [
    {"kind": "train", "step": 50, "loss": 6.5, "mlm_accuracy": 0.25, "tokens_per_second": 18.0},
    {"kind": "evaluation", "step": 50, "mlm_loss": 6.25, "mlm_accuracy": 0.375},
]


@pytest.fixture(autouse=True)
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_module.time, "time", lambda: NOW + 2)


def write_run(directory: Path, *entries: Entry) -> Path:
    directory.mkdir(parents=True)
    (directory / LOCK_NAME).touch()
    (directory / "checkpoints" / "40").mkdir(parents=True)
    (directory / "metrics.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in LOG))
    (directory / GOODPUT_NAME).write_bytes(b"".join(entry.line() for entry in entries))
    return directory


def status_of(directory: Path) -> RunStatus:
    status = read_status(directory)
    assert isinstance(status, RunStatus)
    return status


def test_a_killed_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", START, TRAINED)
    status = status_of(run)
    assert status.state == "killed"
    assert (status.step, status.total_steps, status.checkpoint) == (50, 200, 40)
    first, second, *others = str(status).splitlines()
    assert first == (
        f"run        {run}: killed (process 4711 on node1), last seen 42s ago; the same command "
        "resumes it"
    )
    assert second == "progress   step 50 of 200 (25.0%); newest checkpoint: step 40"
    assert others[0] == "train      loss 6.500  mlm_accuracy 25.0%"
    assert others[1] == "held out, after step 50:  mlm_loss 6.250  mlm_accuracy 37.5%"
    assert others[2] == "goodput    83.3% of 1m 00s were spent on training steps (1 start)"
    assert others[-1] == (
        "speed      18 real tokens/s in training steps, 15 overall; fill rate 90.0%; MFU 40.0%, "
        "33.3% overall; data stall 0.0%"
    )


def test_the_log_may_be_ahead_of_the_ledger(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", START)
    assert status_of(run).step == 50


def test_a_running_run(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", START, TRAINED)
    program = (
        "import sys; from pathlib import Path; from bert_jax.runs.ownership import only_writer\n"
        "with only_writer(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(run)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        assert is_locked(run) and status_of(run).state == "running"
        assert "running (process 4711 on node1); last sign of life 42s ago" in str(status_of(run))
    assert not is_locked(run) and status_of(run).state == "killed"


def write_heartbeat(run: Path, state: str, *, age: float, since: float) -> None:
    times = {"time": NOW + 2 - age, "progress_time": NOW + 2 - since}
    beat = {**times, "step": 51, "state": state, "host": "node1"}
    (run / "heartbeat.json").write_text(json.dumps(beat))


def test_a_heartbeat_shows_what_a_run_is_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "run", START, TRAINED)
    with only_writer(run):
        write_heartbeat(run, "evaluating", age=3, since=20)
        status = status_of(run)
        assert (status.state, status.activity) == ("running", "evaluating")
        assert (
            str(status)
            .splitlines()[0]
            .endswith("running, evaluating (process 4711 on node1); last sign of life 3s ago")
        )
        write_heartbeat(run, "waiting for data", age=3, since=600)
        assert "last sign of life 3s ago; no progress for 10m 00s\n" in str(status_of(run))
    # The lock may be invisible if another machine holds it, but not if this machine does.
    assert status_of(run).state == "running"
    monkeypatch.setattr(status_module.socket, "gethostname", lambda: "node1")
    assert status_of(run).state == "killed"
    write_heartbeat(run, "evaluating", age=35, since=35)
    status = status_of(run)
    assert (status.state, status.activity) == ("killed", "")
    assert "killed (process 4711 on node1), last seen 35s ago" in str(status)
    write_heartbeat(run, "finished", age=3, since=3)
    # The ledger, not the heartbeat, determines how the run ended.
    assert status_of(run).state == "killed"
    (run / "heartbeat.json").write_text("{}")
    with pytest.raises(ValueError, match=r"heartbeat\.json"):
        read_status(run)


def test_finished_stopped_and_failed_runs(tmp_path: Path) -> None:
    finished = status_of(write_run(tmp_path / "finished", START, TRAINED, FINISHED))
    assert finished.state == "finished" and finished.progress == "step 200 of 200 (100.0%)"
    stopped = Entry("end", NOW, 60, {"other": 1.0}, state="stopped")
    assert status_of(write_run(tmp_path / "stopped", START, stopped)).state == "stopped"
    failed = Entry("end", NOW, 60, state="failed", error="OSError: no disk")
    status = status_of(write_run(tmp_path / "failed", START, failed))
    assert status.state == "failed" and str(status).splitlines()[0].endswith("OSError: no disk")


def test_a_run_that_has_not_started(tmp_path: Path) -> None:
    assert status_of(tmp_path).state == "not started"
    assert "there is no such directory" in str(status_of(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_a_run_of_an_earlier_version(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / GOODPUT_NAME).unlink()
    status = status_of(run)
    assert (status.state, status.step, status.total_steps) == ("ended", 50, None)
    assert f"goodput    unknown, since there is no {GOODPUT_NAME}" in str(status)


def test_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    assert str(read_status(tmp_path)) == f"sweep      {tmp_path}: no run has started"
    write_run(tmp_path / "runs" / "b", START, TRAINED)
    write_run(tmp_path / "runs" / "a-long-name", START, TRAINED, FINISHED)
    status = read_status(tmp_path)
    assert isinstance(status, SweepStatus)
    assert str(status).splitlines() == [
        f"sweep      {tmp_path}: 1 finished, 1 killed",
        "  a-long-name  finished   step 200 of 200 (100.0%)  goodput 82.0%",
        "  b            killed     step 50 of 200 (25.0%)  goodput 83.3%",
    ]
    assert [run["state"] for run in status.to_json()["runs"]] == ["finished", "killed"]


def test_the_command_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", START, TRAINED, FINISHED)
    assert main(["status", str(run), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["state"], printed["alive"], printed["step"]) == ("finished", False, 200)
    assert printed["goodput"]["goodput"] == pytest.approx(50 / 61)
    assert printed["goodput"]["goodput_time"] == 50
    assert printed["goodput"]["badput_time"]["training_prep"] == 10
    assert printed["goodput"]["badput_time"]["custom_badput_events"]["evaluation"] == 0
    assert printed["held_out"] == {"mlm_loss": 6.25, "mlm_accuracy": 0.375}


def test_other_directories_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for path, problem in ((tmp_path / "file", "this is a file"), (tmp_path, "this is an exported")):
        (tmp_path / "model.onnx").touch()
        assert main(["status", str(path)]) == 2
        assert problem in capsys.readouterr().err
    run = write_run(tmp_path / "run", START)
    (run / GOODPUT_NAME).write_text("nonsense\n")
    assert main(["status", str(run)]) == 2
    assert "goodput.jsonl, line 1: this is not an entry" in capsys.readouterr().err


def test_reading_the_status_does_not_stop_a_run_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let another process hold a shared lock for a moment, as `is_locked` does."""
    import fcntl
    import os

    run = write_run(tmp_path / "run", START)
    reader = os.open(run / LOCK_NAME, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    monkeypatch.setattr("bert_jax.runs.ownership.time.sleep", lambda _: os.close(reader))
    with only_writer(run):
        assert is_locked(run)
