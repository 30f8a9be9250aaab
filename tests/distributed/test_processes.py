"""Test that processes started together train, stop and resume like a single process."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..commands import Finished

# More processes or devices would spend most of their time waiting for each other on two cores.
PROCESSES, DEVICES = 2, 2
BEYOND = 2_000  # No run in this file reaches this many steps.


def process_of(launcher: subprocess.Popen[str], index: int) -> int:
    """Return the process ID of the process with this JAX index, according to Linux's /proc."""
    wanted = f"JAX_PROCESS_ID={index}\0".encode()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == launcher.pid and wanted in (stat.parent / "environ").read_bytes():
                return int(stat.parent.name)
        except OSError:  # The process has just ended.
            continue
    raise AssertionError(f"process {index} is not running")


def reported(step: int, work_dir: Path) -> bool:
    """Return whether the run in a work directory has logged a step."""
    log = work_dir / "metrics.jsonl"
    return log.exists() and f'"step": {step},' in log.read_text()


@dataclass(frozen=True)
class Stopped:
    """A two-process run after one of its processes received SIGTERM."""

    work_dir: Path
    code: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def stopped(bert_jax, short_run, tmp_path_factory) -> Stopped:
    if sys.platform != "linux":
        pytest.skip("these tests find processes through /proc")
    work_dir = tmp_path_factory.mktemp("runs") / "two"
    words = short_run(work_dir, f"phases.only.num_steps={BEYOND}")
    launcher = bert_jax.start(*words, launcher=PROCESSES, devices=DEVICES)
    # A signal during the evaluation after step 12 would end that evaluation.
    bert_jax.wait_for(launcher, lambda: reported(13, work_dir))
    os.kill(process_of(launcher, 1), signal.SIGTERM)
    finished = bert_jax.finish(launcher)
    return Stopped(work_dir, finished.code, finished.output, finished.errors)


def keep_checkpoints(source: Path, target: Path, last: int) -> None:
    """Copy a work directory as it was after step `last`."""
    shutil.copytree(source, target)
    for checkpoint in (target / "checkpoints").iterdir():
        if int(checkpoint.name) > last:
            shutil.rmtree(checkpoint)


# A program whose second process opens the directory after the first has created it.
LATE = """
import sys, time
from pathlib import Path

import jax

from bert_jax.training import distributed
from bert_jax.training.checkpoint import Checkpointer
from bert_jax.training.checkpoint_files import saved_run
from bert_jax.training.checkpoint_files import CheckpointConfig

distributed.join()
time.sleep(2 * jax.process_index())
directory = Path(sys.argv[1])
assert saved_run(directory) is None
Checkpointer(directory, CheckpointConfig(), {}).close()
"""


# A program in which each process has a different config and finds a different checkpoint.
DIFFERENT = """
import jax

from bert_jax.training import distributed

distributed.join()
index = jax.process_index()
assert distributed.agreed(1_000 * (index + 1)) == 1_000
distributed.check_same({"the config": {"rate": 0.1}, "the corpora": [1, 2]})
try:
    distributed.check_same({"the config": {"rate": index}, "the corpora": [1, 2]})
except ValueError as error:
    assert "the config: process 1" in str(error) and "corpora" not in str(error)
else:
    raise SystemExit("not refused")
"""


# A verb that fails on process 1 while process 0 continues ("single"), or on both processes
# ("everywhere").
FAILS = """
import sys, time, types

import jax

from bert_jax.cli import main
from bert_jax.training import distributed


def run(args):
    distributed.join()
    if jax.process_index() == 1 or args.where == "everywhere":
        if args.where == "single":
            distributed._LEAVING_SECONDS = 3  # it waits this long, since the other never exits
        raise {"mistake": ValueError, "bug": RuntimeError}[args.kind]("it went wrong")
    time.sleep(200)


def add_arguments(parser):
    parser.add_argument("kind")
    parser.add_argument("where")


sys.modules["failing"] = types.SimpleNamespace(run=run, add_arguments=add_arguments, __doc__="")
main.VERBS = {"fail": main.Verb("fails", "failing")}
sys.exit(main.main())
"""


# A verb that kills one process during a collective computation.
KILLED = """
import os, signal, sys, types

import jax

from bert_jax.cli import main
from bert_jax.training import distributed


def run(args):
    distributed._LEAVING_SECONDS = 3
    distributed.join()
    for number in range(100_000):
        assert distributed.agreed(number) == number
        if number == 20 and jax.process_index() == int(args.victim):
            os.kill(os.getpid(), signal.SIGKILL)


sys.modules["killed"] = types.SimpleNamespace(
    run=run, add_arguments=lambda parser: parser.add_argument("victim"), __doc__=""
)
main.VERBS = {"be-killed": main.Verb("is killed", "killed")}
sys.exit(main.main())
"""


def start_together(bert_jax, program: str, *words: str) -> list[subprocess.Popen[str]]:
    """Start processes that run a program together."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    together = {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(PROCESSES)}
    processes = []
    for index in range(PROCESSES):
        environment = bert_jax.environment() | together | {"JAX_PROCESS_ID": str(index)}
        command = [sys.executable, "-c", program, *words]
        processes.append(
            subprocess.Popen(
                command,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    return processes


def end_of(
    processes: list[subprocess.Popen[str]], *, which: Sequence[int], seconds: float
) -> list[Finished]:
    """Wait for the processes at the indices `which`, return their results, and kill all others."""
    try:
        ended = []
        for index in which:
            output, errors = processes[index].communicate(timeout=seconds)
            ended.append(Finished(processes[index].returncode, output, errors))
        return ended
    finally:
        for process in processes:
            with process:  # This closes the pipes of the process.
                process.kill()


def assert_run_together(bert_jax, program: str, *words: str) -> None:
    """Check that a program succeeds in all processes."""
    processes = start_together(bert_jax, program, *words)
    ended = end_of(processes, which=range(PROCESSES), seconds=240)
    assert [finished.code for finished in ended] == [0] * PROCESSES, ended


def test_a_process_may_open_a_new_work_directory_later(bert_jax, tmp_path):
    assert_run_together(bert_jax, LATE, str(tmp_path / "checkpoints"))


def test_processes_with_different_configs_are_refused(bert_jax):
    assert_run_together(bert_jax, DIFFERENT)


def test_a_single_failing_process_does_not_wait_for_the_others(bert_jax):
    codes = {"mistake": 2, "bug": 1}
    runs = {kind: start_together(bert_jax, FAILS, "fail", kind, "single") for kind in codes}
    for kind, code in codes.items():
        # JAX itself would wait for 300 s.
        (failed,) = end_of(runs[kind], which=[1], seconds=120)
        assert failed.code == code, failed.errors
        assert "it went wrong" in failed.errors
        assert ("Traceback" in failed.errors) == (kind == "bug")


def test_the_error_is_reported_if_all_processes_fail(bert_jax):
    processes = start_together(bert_jax, FAILS, "fail", "mistake", "everywhere")
    ended = end_of(processes, which=range(PROCESSES), seconds=120)
    for finished in ended:
        assert finished.code == 2, ended
        assert "bert-jax: error: it went wrong" in finished.errors
        assert "barrier" not in finished.errors.lower()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_the_surviving_process_names_the_killed_one(bert_jax, victim):
    """Kill one of two processes. If it is the coordinator (0), JAX aborts the other one."""
    processes = start_together(bert_jax, KILLED, "be-killed", str(victim))
    (survivor,) = end_of(processes, which=[1 - victim], seconds=120)
    assert survivor.code == 2, survivor.errors
    sentences = [line for line in survivor.errors.splitlines() if line.startswith("bert-jax: ")]
    assert len(sentences) == 1 and "run the same command again on all processes" in sentences[0]
    assert f"process {victim} " in sentences[0] or "the coordinator is process 0" in sentences[0]
    assert "Traceback" not in survivor.errors


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one(stopped, one_device, assert_same_history):
    assert "[0] devices    4 x cpu (4 data)" in stopped.output
    assert_same_history(stopped.work_dir, one_device)


@pytest.mark.slow
def test_sigterm_to_one_process_saves_and_stops_all(stopped):
    assert stopped.code == 143, stopped.errors
    step = int(re.search(r"stopped: saved step (\d+);", stopped.output).group(1))
    assert 12 <= step < BEYOND
    checkpoints = [path.name for path in (stopped.work_dir / "checkpoints").iterdir()]
    assert str(step) in checkpoints
    assert all(name.isdigit() for name in checkpoints)
    # Only process 0 reports.
    assert not re.search(r"^\[1\] (model|start|step|held out|stopped)", stopped.output, re.M)
    assert not re.search(r"^\[1\] (model|start|step|held out|stopped)", stopped.errors, re.M)


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_all(bert_jax, short_run, interrupts_enabled, tmp_path):
    # However many steps finish before the signal arrives, no checkpoint becomes due.
    rare = (f"{part}.every_steps={BEYOND}" for part in ("checkpoint", "evaluation"))
    words = short_run(tmp_path, f"phases.only.num_steps={BEYOND}", *rare)
    launcher = bert_jax.start(*words, launcher=PROCESSES, devices=DEVICES)
    bert_jax.wait_for(launcher, lambda: reported(1, tmp_path))
    launcher.send_signal(signal.SIGINT)
    finished = bert_jax.finish(launcher)
    assert finished.code == 130, finished.errors
    step = re.search(r"stopped: saved step ([\d,]+);", finished.output).group(1)
    saved = [path.name for path in (tmp_path / "checkpoints").iterdir()]
    assert saved == [step.replace(",", "")]


@pytest.mark.slow
def test_a_signal_while_a_run_resumes_stops_it(bert_jax, short_run, one_device, tmp_path):
    keep_checkpoints(one_device, tmp_path / "run", last=4)
    config = tmp_path / "run/config.json"
    rare = (f"{part}.every_steps={BEYOND}" for part in ("checkpoint", "evaluation"))
    words = short_run(tmp_path / "run", f"phases.only.num_steps={BEYOND}", *rare)
    launcher = bert_jax.start(*words, launcher=PROCESSES, devices=DEVICES)
    # The config is written before the step is compiled.
    bert_jax.wait_for(launcher, lambda: f'"num_steps": {BEYOND}' in config.read_text())
    os.kill(process_of(launcher, 1), signal.SIGTERM)
    finished = bert_jax.finish(launcher)
    assert finished.code == 143, finished.errors
    step = re.search(r"stopped: saved step ([\d,]+);", finished.output).group(1)
    assert 4 < int(step.replace(",", "")) < BEYOND


@pytest.mark.slow
def test_two_processes_resume_the_run_of_one_and_one_the_run_of_two(
    bert_jax, bert_jax_here, short_run, one_device, assert_same_history, tmp_path
):
    two, one = tmp_path / "two", tmp_path / "one"
    keep_checkpoints(one_device, two, last=4)
    output = bert_jax(*short_run(two), launcher=PROCESSES, devices=DEVICES).output
    assert "[0] start      this run's checkpoint at step 4" in output
    assert_same_history(two, one_device)
    keep_checkpoints(two, one, last=8)
    finished = bert_jax_here(*short_run(one))
    assert finished.code == 0, finished.errors
    assert "start      this run's checkpoint at step 8" in finished.output
    assert_same_history(one, one_device)
