"""Test how runs cope with damaged checkpoints, full disks, and lost directories or terminals."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bert_jax.cli.main import main
from bert_jax.training.checkpoint_files import ASIDE_NAME
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow  # These tests train complete runs.

TOTAL = 32


def losses(work_dir: Path) -> dict[int, float]:
    entries = read_metrics(work_dir / "metrics.jsonl")
    return {entry["step"]: entry["loss"] for entry in entries if entry["kind"] == "train"}


Words = Callable[..., list[str]]


@pytest.fixture(scope="module")
def pretrain(tiny_config: Path) -> Words:
    """Return a function that builds a `pretrain` command for the tiny config."""

    def words(work_dir: Path, *overrides: str) -> list[str]:
        named = [f"--config.work_dir={work_dir}", *(f"--config.{word}" for word in overrides)]
        return ["pretrain", "--config", str(tiny_config), *named]

    return words


@pytest.fixture(scope="module")
def finished_run(pretrain: Words, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on all of the test process's devices, and return the work directory."""
    work_dir = tmp_path_factory.mktemp("runs") / "finished"
    assert main(pretrain(work_dir)) == 0
    return work_dir


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def test_a_run_resumes_from_the_previous_intact_checkpoint(
    bert_jax_here, pretrain: Words, finished_run: Path, run: Path
) -> None:
    newest, before = sorted(int(path.name) for path in (run / "checkpoints").iterdir())[:-3:-1]
    (data,) = (run / "checkpoints" / str(newest) / "params" / "d").iterdir()
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 4
    data.write_bytes(content)
    verified = bert_jax_here("verify-checkpoint", run)
    assert verified.code == 1 and f"step {newest}  damaged: params/d/{data.name}" in verified.output
    inspected = bert_jax_here("export", run, "--format", "huggingface", "--output", run / "out")
    assert inspected.code == 2 and inspected.errors.count("\n") == 1
    assert f"checkpoints/{newest}: the checkpoint at step {newest} is damaged" in inspected.errors
    resumed = bert_jax_here(*pretrain(run))
    assert resumed.code == 0, resumed.errors
    (line,) = [line for line in resumed.output.splitlines() if line.startswith("warning ")]
    assert f"step {newest}: params/d/{data.name} does not match" in line
    assert line.endswith(f"; resuming from step {before}")
    assert losses(run) == losses(finished_run)
    assert bert_jax_here("verify-checkpoint", run).code == 0


def test_a_run_can_return_to_an_earlier_step(
    bert_jax_here, pretrain: Words, finished_run: Path, run: Path
) -> None:
    back = [*pretrain(run, "optimizer.peak_learning_rate=1e-4"), "--from-step", "10"]
    resumed = bert_jax_here(*back)
    assert resumed.code == 0, resumed.errors
    assert "from step  10: later checkpoints (" in resumed.output
    assert "this run's checkpoint at step 10" in resumed.output
    before, after = losses(finished_run), losses(run)
    assert after.keys() == before.keys()
    assert {step for step in before if before[step] != after[step]} == set(range(12, TOTAL + 1))
    assert {path.name for path in (run / ASIDE_NAME).iterdir()} >= {"20", "30", "32"}
    again = bert_jax_here(*back)
    assert again.code == 0 and "was already applied by an earlier command" in again.output
    assert losses(run) == after
    refused = bert_jax_here(*pretrain(run), "--from-step", "11")
    assert refused.code == 2 and "no checkpoint at step 11. Available steps: 10" in refused.errors


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a 700 KiB file system that `mount -o remount,size=...` can resize."""
    target = tmp_path / "disk"
    target.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "none", target]).returncode:
        pytest.skip("mounting a file system requires root")
    yield target
    subprocess.run(["umount", "-l", target], check=True)


def test_a_run_reports_a_full_disk_and_resumes_later(
    bert_jax, bert_jax_here, pretrain: Words, finished_run: Path, small_disk: Path
) -> None:
    """Use a subprocess, since TensorStore's threads report further errors after a failed save."""
    work_dir = small_disk / "run"
    stopped = bert_jax(*pretrain(work_dir), devices=8, code=2)
    (error,) = [line for line in stopped.errors.splitlines() if "error" in line]
    # The path is missing if the error comes from Python rather than from TensorStore.
    cause = (
        r"/checkpoints/\d+: the checkpoint cannot be saved: No space left on device( \(/.*\))?\."
    )
    assert re.search(cause, error)
    assert "run the same command again to resume" in error and "Traceback" not in stopped.errors
    kept = [path.name for path in (work_dir / "checkpoints").iterdir()]
    assert all(name.isdigit() for name in kept)  # The failed save left no temporary files behind.
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    resumed = bert_jax_here(*pretrain(work_dir))
    assert resumed.code == 0, resumed.errors
    assert losses(work_dir) == losses(finished_run)


def test_a_removed_work_directory_stops_the_run(bert_jax, pretrain: Words, tmp_path: Path) -> None:
    work_dir = tmp_path / "run"
    process = bert_jax.start(*pretrain(work_dir, "phases.phase2.num_steps=100000"), killed=True)
    bert_jax.wait_for(process, lambda: (work_dir / "checkpoints" / "5").is_dir())
    work_dir.rename(tmp_path / "elsewhere")
    finished = bert_jax.finish(process)
    assert finished.code == 2
    assert "was removed during the run" in finished.errors
    assert "Traceback" not in finished.errors and not work_dir.exists()


# A script that runs `bert-jax pretrain` and pauses it at step 3 until a file exists, so that the
# run cannot end before the test has closed the terminal. Output that the command discards is kept
# in another file.
PAUSING = """
import os, signal, sys, time
from pathlib import Path
from bert_jax.cli import main, pretrain
from bert_jax.training.reports import TrainReport

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` makes all processes ignore it

file, discarded = Path(sys.argv.pop(1)), sys.argv.pop(1)
show, open_file = pretrain.console_report, os.open

def keep_discarded(path, flags, *args, **options):
    if path == os.devnull and flags == os.O_WRONLY:
        return open_file(discarded, flags | os.O_APPEND | os.O_CREAT)
    return open_file(path, flags, *args, **options)

os.open = keep_discarded

def pause(report):
    show(report)
    if isinstance(report, TrainReport) and report.step >= 3 and not file.exists():
        print("pausing", flush=True)
        while not file.exists():
            time.sleep(0.01)

pretrain.console_report = pause
sys.exit(main.main())
"""


def test_a_run_saves_a_checkpoint_when_its_terminal_closes(
    bert_jax, pretrain: Words, finished_run: Path, tmp_path: Path
) -> None:
    """Close the terminal: the run receives SIGHUP, and its later writes to the terminal fail."""
    work_dir = tmp_path / "run"
    words = pretrain(work_dir, "loader.num_workers=1")
    terminal, side = os.openpty()
    closed, discarded = tmp_path / "closed", tmp_path / "discarded.txt"
    process = subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-c", PAUSING, closed, discarded, *words],
        env=bert_jax.environment(devices=8, killed=True),
        stdin=side,
        stdout=side,
        stderr=side,
    )
    os.close(side)
    shown = b""
    while b"pausing" not in shown:
        shown += os.read(terminal, 1 << 16)  # Reading fails if the process has ended.
    os.close(terminal)
    closed.touch()
    assert process.wait(300) == 129, shown.decode() + discarded.read_text()
    assert "run the same command to resume" in discarded.read_text()
    saved = [int(path.name) for path in (work_dir / "checkpoints").iterdir()]
    assert max(saved) == max(losses(work_dir)) >= 3
    assert main(pretrain(work_dir)) == 0
    assert losses(work_dir) == losses(finished_run)
