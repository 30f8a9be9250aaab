"""Test that several processes without a shared disk can form one run in a bucket."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from bert_jax.runs.bucket_layout import LEASE_NAME, read_layout
from bert_jax.runs.run_index import read_index
from bert_jax.storage import lease as lease_module
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import find, list_objects
from bert_jax.storage.urls import ObjectUrl

from ..commands import Command
from ..distributed.conftest import SHORT_CONFIG
from .conftest import Emulator, free_port
from .test_runs import PROGRAM, assert_same_run

pytestmark = pytest.mark.slow

PROCESSES, DEVICES = 2, 2


@dataclass(frozen=True)
class Outcome:
    """The exit code and the output of one process."""

    code: int
    output: str
    errors: str


class Hosts:
    """An object that starts the processes of a run, each as if on a machine with an empty disk."""

    def __init__(self, command: Command, root: Path):
        self._command, self._root, self._count = command, root, 0

    def start(
        self, *words: object, processes: int = PROCESSES, killed: bool = False
    ) -> list[subprocess.Popen[str]]:
        self._count += 1
        address = f"127.0.0.1:{free_port()}"
        devices = PROCESSES * DEVICES // processes
        started = []
        for index in range(processes):
            self.disks = self._root / f"start{self._count}"
            environment = self._command.environment(devices=devices, killed=killed)
            environment["XDG_CACHE_HOME"] = str(self.disks / str(index))
            if processes > 1:
                environment["JAX_COORDINATOR_ADDRESS"] = address
                environment["JAX_NUM_PROCESSES"] = str(processes)
                environment["JAX_PROCESS_ID"] = str(index)
            command = [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, words)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started

    def __call__(self, *words: object, processes: int = PROCESSES, code: int = 0) -> list[Outcome]:
        """Run a command to its end, and check the exit code of every process."""
        started = self.start(*words, processes=processes)
        ended = []
        for process in started:
            output, errors = process.communicate(timeout=300)
            ended.append(Outcome(process.returncode, output, errors))
        assert [each.code for each in ended] == [code] * processes, ended
        return ended

    def kill(self, victim: int, moment: Callable[[], bool], *words: object) -> None:
        """Start a command, and kill process `victim` as soon as `moment` returns True.

        Then kill the other process: it cannot continue, so a launcher would end it too.
        """
        started = self.start(*words, killed=True)
        deadline = time.monotonic() + 300
        while not moment():
            codes = [process.poll() for process in started]
            assert codes == [None] * PROCESSES, [process.communicate() for process in started]
            assert time.monotonic() < deadline
            time.sleep(0.002)
        started[victim].send_signal(signal.SIGKILL)
        time.sleep(0.5)
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.communicate()


@pytest.fixture
def hosts(bert_jax: Command, tmp_path: Path) -> Hosts:
    return Hosts(bert_jax, tmp_path)


@pytest.fixture(scope="module")
def config(tiny_config: Path) -> Path:
    file = tiny_config.with_name("hosts.py")
    file.write_text(SHORT_CONFIG.format(tiny_config.parent), encoding="utf-8")
    return file


def pretrain(config: Path, work_dir: object, *more: str) -> list[str]:
    settings = [f"work_dir={work_dir}", "mesh.data=1", f"mesh.fsdp={PROCESSES * DEVICES}"]
    return ["pretrain", "--config", str(config), *(f"--config.{x}" for x in settings), *more]


@pytest.fixture(scope="module")
def on_disk(config: Path, bert_jax: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of the same processes with a work directory on a disk that they share."""
    work_dir = tmp_path_factory.mktemp("shared") / "run"
    bert_jax(*pretrain(config, work_dir), launcher=PROCESSES, devices=DEVICES)
    return work_dir


def copied_by(process: int, url: ObjectUrl, step: int) -> Callable[[], bool]:
    """Return whether a process has copied arrays of a checkpoint that is not complete."""

    def check() -> bool:
        names = [url.relative(info.url) for info in list_objects(url / "checkpoints")]
        own = f"ocdbt.process_{process}/d"
        copied = any(name.startswith(f"checkpoints/{step}.") and own in name for name in names)
        return copied and step not in read_index(url).checkpoints

    return check


def test_processes_with_their_own_disks_survive_kills(
    hosts: Hosts, config: Path, on_disk: Path, bucket: ObjectUrl, emulator: Emulator
) -> None:
    url = bucket / "runs/hosts"
    words = pretrain(config, url)
    # The second process is killed while it copies its part of the second checkpoint, and the first
    # one while it combines the parts of a later one.
    stalled = "checkpoints(%2F|/)8[.0-9]+(%2F|/).parts(%2F|/)1"
    emulator.fail("stall", 1, seconds=15, methods="PUT POST", path=stalled)
    hosts.kill(1, copied_by(1, url, 8), *words)
    emulator.clear_faults()
    assert set(read_layout(url).checkpoints) == {4, 6} and read_layout(url).unfinished
    path = "checkpoints(%2F|/)12[.0-9]+(%2F|/)params(%2F|/)manifest"
    emulator.fail("stall", 1, seconds=15, methods="PUT POST", path=path)
    hosts.kill(0, copied_by(1, url, 12), *words)
    emulator.clear_faults()
    assert set(read_layout(url).checkpoints) == {4, 6, 8}
    first, second = hosts(*words)
    assert "this run's checkpoint at step 8" in first.output
    assert "held out" not in second.output  # only the first process reports
    assert_same_run(url, on_disk)
    layout = read_layout(url)
    assert not layout.unfinished and find(url / LEASE_NAME) is None
    assert not any(".parts" in name for name in layout.files)
    assert not list(hosts.disks.glob("*/bert_jax/runs/*"))  # removed at the end
    # A single process continues the run, and then two processes continue it.
    longer = [*words, "--config.phases.only.num_steps=14"]
    (alone,) = hosts(*longer, processes=1)
    assert "this run's checkpoint at step 12" in alone.output
    first, _ = hosts(*words, "--config.phases.only.num_steps=16")
    assert "this run's checkpoint at step 14" in first.output
    hosts("verify-checkpoint", url, processes=1)


def test_all_processes_stop_if_one_cannot_copy_its_part(
    hosts: Hosts, config: Path, bucket: ObjectUrl, emulator: Emulator
) -> None:
    url = bucket / "run"
    words = pretrain(config, url, "--config.phases.only.num_steps=2000")
    path = "checkpoints(%2F|/)8[.0-9]+(%2F|/)params(%2F|/)ocdbt.process_1"
    emulator.fail("status", 10_000, methods="PUT POST", path=path, status=401)
    for ended in hosts(*words, code=2):
        (error,) = [line for line in ended.errors.splitlines() if "error: " in line]
        assert f"{url}: the run cannot be copied to the bucket: there are no valid" in error
        assert "checkpoints in the bucket are intact (steps: 4, 6). Fix the cause, and run" in error
        assert "Traceback" not in ended.errors
    assert set(read_layout(url).checkpoints) == {4, 6}


def test_a_second_run_is_refused_on_all_processes(
    hosts: Hosts, config: Path, bucket: ObjectUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.2)
    with Lease(bucket / "run" / LEASE_NAME, "run", "x"):
        refused = hosts(*pretrain(config, bucket / "run"), code=2)
    message = f"work_dir={bucket}/run: another run is writing to it (process {os.getpid()} on"
    for ended in refused:
        (error,) = [line for line in ended.errors.splitlines() if "error: " in line]
        assert message in error and "Traceback" not in ended.errors
