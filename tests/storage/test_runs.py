"""Test that a run in a bucket gives the same results as a run on disk, even after being killed."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from bert_jax.runs.bucket_layout import LEASE_NAME, read_layout
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.checkpoints import load_model
from bert_jax.runs.run_index import INDEX_NAME
from bert_jax.runs.verification import verify_steps
from bert_jax.runs.views import local_run, refresh
from bert_jax.storage import lease as lease_module
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import (
    find,
    list_objects,
    read_bytes,
    upload,
    upload_directory,
    write_bytes,
)
from bert_jax.storage.urls import ObjectUrl

from ..commands import Command, Finished
from .conftest import Emulator

# In this program, leases expire soon, files are copied often, and curves are not drawn.
PROGRAM = """
import sys
from bert_jax.runs import background_copies
from bert_jax.storage import lease, retries
from bert_jax.training import reporting
lease.LEASE_SECONDS, lease.RENEWAL_SECONDS, lease.POLL_SECONDS = 4.0, 0.5, 0.2
retries.FIRST_DELAY, background_copies.PERIOD_SECONDS = 0.05, 0.2
reporting.draw_curves = lambda *_, **__: None
from bert_jax.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


Here = Callable[..., Finished]


class Runner:
    """An object that runs `bert-jax` in subprocesses, each with an empty disk of its own."""

    def __init__(self, command: Command, root: Path):
        self._command, self._root, self._count = command, root, 0
        self.cache = root

    def start(self, *words: object, killed: bool = False) -> subprocess.Popen[str]:
        self._count += 1
        self.cache = self._root / f"machine{self._count}"
        environment = self._command.environment(killed=killed) | {"XDG_CACHE_HOME": str(self.cache)}
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: object, code: int = 0) -> tuple[str, str]:
        process = self.start(*words)
        output, errors = process.communicate(timeout=400)
        assert process.returncode == code, output + errors
        return output, errors

    def kill(self, moment: Callable[[], bool], *words: object) -> None:
        """Start a command, and kill it as soon as `moment` returns True."""
        process = self.start(*words, killed=True)
        deadline = time.monotonic() + 300
        while not moment():
            assert process.poll() is None, "".join(process.communicate())
            assert time.monotonic() < deadline
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.fixture
def run(bert_jax: Command, tmp_path: Path) -> Runner:
    return Runner(bert_jax, tmp_path)


@dataclass(frozen=True)
class Pretraining:
    """A finished run on disk, and the corpora and config of a second run in a bucket."""

    config: Path
    on_disk: Path

    def words(self, work_dir: object, corpora: object = None) -> list[str]:
        named = [f"--config.work_dir={work_dir}", "--config.model.num_layers=1"]
        if corpora is not None:
            pairs = (("phase1", 32), ("phase2", 64))
            named += [f"--config.phases.{name}.corpus={corpora}/{n}" for name, n in pairs]
        return ["pretrain", "--config", str(self.config), *named]


@pytest.fixture(scope="session")
def pretraining(
    tiny_config: Path, bert_jax: Command, tmp_path_factory: pytest.TempPathFactory
) -> Pretraining:
    on_disk = tmp_path_factory.mktemp("on_disk") / "run"
    both = Pretraining(tiny_config, on_disk)
    Runner(bert_jax, on_disk.parent)(*both.words(on_disk))
    return both


def upload_corpora(config: Path, url: ObjectUrl) -> ObjectUrl:
    for name in ("32", "64"):
        upload_directory(config.parent / name, url / name, last="manifest.json")
    return url


def entries(content: bytes) -> list[dict[str, float]]:
    """Return a log's entries without values that depend on the time."""
    timed = ("tokens_per_second", "stall", "seconds", "utilisation", "compiling", "steps")
    lines = [json.loads(line) for line in content.splitlines()]
    return [{key: x for key, x in line.items() if key not in timed} for line in lines]


def assert_same_run(url: ObjectUrl, on_disk: Path) -> None:
    here = entries(read_log(url / "metrics.parts"))
    assert here == entries((on_disk / "metrics.jsonl").read_bytes())
    assert set(read_layout(url).checkpoints) == {
        int(path.name) for path in (on_disk / "checkpoints").iterdir()
    }
    refresh(local_run(url))
    ours, theirs = (load_model(os.fspath(path)).model for path in (url, on_disk))
    for one, other in zip(
        jax.tree.leaves(nnx.state(ours)), jax.tree.leaves(nnx.state(theirs)), strict=True
    ):
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))
    outcomes = list(verify_steps(os.fspath(url)))
    assert outcomes and not any(outcome.is_damaged for outcome in outcomes)


def kill_during_upload(
    run: Runner, emulator: Emulator, url: ObjectUrl, step: int, *words: object
) -> None:
    """Kill a run when some, but not all, files of a checkpoint are in the bucket."""
    path = rf"checkpoints(%2F|/){step}\."
    emulator.fail("stall", methods="PUT POST", path=path, seconds=30, after=4)
    run.kill(lambda: not emulator.faults_left(), *words)
    assert read_layout(url).unfinished


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_as_if_it_had_not_been(
    run: Runner, pretraining: Pretraining, bucket: ObjectUrl, emulator: Emulator
) -> None:
    corpora = upload_corpora(pretraining.config, bucket / "corpora")
    url = bucket / "runs/one"
    words = pretraining.words(url, corpora)
    rng = random.Random(3)
    # Kill the run during an upload, during a save, and at a random moment.
    kill_during_upload(run, emulator, url, 10, *words)
    assert set(read_layout(url).checkpoints) <= {5}
    saving = "bert_jax/runs/*/one/checkpoints/*orbax-checkpoint-tmp*"
    run.kill(lambda: bool(list(run.cache.glob(saving))), *words)
    until = time.monotonic() + rng.uniform(3, 12)
    run.kill(lambda: time.monotonic() > until, *words)
    emulator.fail("status", 6, methods="PUT POST", path="checkpoints")
    emulator.fail("freeze", 1, seconds=30, methods="PUT POST", path="checkpoints", after=8)
    output, errors = run(*words)
    assert "this run's checkpoint at step" in output
    assert emulator.faults_left() == 0
    assert re.search(r"checkpoints/.*: writing succeeded at attempt 2, after 30\.", errors)
    assert_same_run(url, pretraining.on_disk)
    assert find(url / LEASE_NAME) is None
    layout = read_layout(url)
    assert not layout.unfinished
    again, _ = run(*words)
    assert "finished: nothing to do" in again


def finetuning_words(work_dir: object, init: object, data: object) -> list[str]:
    keys = ("num_epochs=2", "batch_size=8", "max_length=32", "max_shapes=1", "dropout=0.1")
    more = ("evaluations_per_epoch=2", "report_every_steps=1", "tensorboard=False")
    return [
        *("finetune", "--config", "table", "--init", str(init), "--data", str(data)),
        f"--config.work_dir={work_dir}",
        *(f"--config.{key}" for key in (*keys, *more)),
    ]


@pytest.mark.slow
def test_fine_tuning_in_a_bucket_survives_a_kill(
    run: Runner,
    pretraining: Pretraining,
    bucket: ObjectUrl,
    emulator: Emulator,
    tmp_path: Path,
) -> None:
    rng = random.Random(4)
    nouns = {"sea": ("boat", "wave", "gull"), "land": ("fox", "oak", "trail")}
    rows = [(rng.choice(nouns[label]), label) for label in ("sea", "land") * 60]
    table = tmp_path / "table.csv"
    lines = (
        f"a {noun} number {number} {noun},{label}" for number, (noun, label) in enumerate(rows)
    )
    table.write_text("text,label\n" + "\n".join(lines) + "\n")
    upload(table, bucket / "table.csv")
    upload_directory(pretraining.on_disk, bucket / "base", last="model.json")
    on_disk, url = tmp_path / "on_disk", bucket / "runs/table"
    run(*finetuning_words(on_disk, pretraining.on_disk, table))
    words = finetuning_words(url, bucket / "base", bucket / "table.csv")
    kill_during_upload(run, emulator, url, 7, *words)
    assert not read_layout(url).checkpoints
    output, _ = run(*words)
    assert f"work directory: {url}" in output
    scores = json.loads(read_bytes(url / "scores.json"))
    expected = json.loads((on_disk / "scores.json").read_text())
    assert (scores["step"], scores["scores"]) == (expected["step"], expected["scores"])
    assert_same_run(url, on_disk)
    # The staging directory is removed at the end.
    assert not list((run.cache / "bert_jax/runs").glob("*"))
    evaluated, _ = run("evaluate", url)
    assert f"model      {url}, step {scores['step']}" in evaluated


STEP_15 = r"checkpoints(%2F|/)15\."


def only_error(errors: str) -> str:
    assert "Traceback" not in errors
    (error,) = [line for line in errors.splitlines() if "error: " in line]
    return error


@pytest.mark.slow
def test_a_run_without_permission_stops_and_is_resumed(
    run: Runner, pretraining: Pretraining, bucket: ObjectUrl, emulator: Emulator
) -> None:
    url = bucket / "run"
    words = pretraining.words(url)
    emulator.deny_access(STEP_15)
    _, errors = run(*words, code=2)
    error = only_error(errors)
    assert f"{url}: the run cannot be copied to the bucket: the store denies access. The" in error
    assert "intact (steps: 5, 10). Fix the cause, and run the same command again to" in error
    emulator.clear_faults()
    assert set(read_layout(url).checkpoints) == {5, 10}
    output, _ = run(*words)
    assert "this run's checkpoint at step 10" in output
    assert_same_run(url, pretraining.on_disk)


@pytest.mark.slow
def test_a_suspended_run_that_was_replaced_changes_nothing(
    run: Runner, pretraining: Pretraining, bucket: ObjectUrl, emulator: Emulator
) -> None:
    url = bucket / "run"
    words = pretraining.words(url)
    # The index is written at the start and then for steps 5 and 10.
    emulator.fail("hold", methods="PUT POST", path=INDEX_NAME, after=2)
    suspended = run.start(*words)
    deadline = time.monotonic() + 300
    while emulator.faults_left():
        assert suspended.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    suspended.send_signal(signal.SIGSTOP)
    output, errors = run(*words)
    assert f"work_dir={url}: waiting for up to 4 s, since process {suspended.pid}" in errors
    assert "this run's checkpoint at step 5" in output
    before = {info.url: info.version for info in list_objects(url)}
    emulator.release()  # the first run's addition of step 10 to the index arrives
    suspended.send_signal(signal.SIGCONT)
    _, errors = suspended.communicate(timeout=300)
    assert suspended.returncode == 2
    assert only_error(errors).endswith(
        f"work_dir={url}: this run stopped writing, because another process took over its lease. "
        "Make sure that no other process writes there, and run the same command again."
    )
    assert {info.url: info.version for info in list_objects(url)} == before
    assert_same_run(url, pretraining.on_disk)


@pytest.mark.slow
def test_a_run_that_cannot_be_copied_stops_and_is_resumed(
    run: Runner, pretraining: Pretraining, bucket: ObjectUrl, emulator: Emulator
) -> None:
    url = bucket / "run"
    words = pretraining.words(url)
    emulator.expire_credentials(path=STEP_15)
    _, errors = run(*words, code=2)
    error = only_error(errors)
    assert f"{url}: the run cannot be copied to the bucket: there are no valid credentials" in error
    assert "checkpoints in the bucket are intact (steps: 5, 10). Fix the cause, and run" in error
    emulator.clear_faults()
    time.sleep(4)  # Without credentials, the run could not remove its lease, which expires now.
    shown, _ = run("status", url)
    assert f"run        {url}: failed" in shown or "killed" in shown
    output, _ = run(*words)
    assert "this run's checkpoint at step 10" in output
    assert_same_run(url, pretraining.on_disk)
    shown, _ = run("status", url)
    assert f"run        {url}: finished" in shown and "step 32 of 32" in shown
    compared, _ = run("compare-runs", url, pretraining.on_disk)
    assert "last step" in compared
    back, _ = run(*words, "--from-step", "20")
    assert "from step  20: later checkpoints (30, 32) moved to" in back
    assert_same_run(url, pretraining.on_disk)
    aside = {info.url.name for info in list_objects(url / "checkpoints-set-aside/32")}
    assert {"checksums.json", "manifest.ocdbt"} <= aside


def test_a_second_writer_and_other_directories_are_refused(
    bucket: ObjectUrl, tiny_config: Path, monkeypatch: pytest.MonkeyPatch, bert_jax_here: Here
) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.1)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)
    words = ["pretrain", "--config", str(tiny_config)]
    with Lease(bucket / "run" / LEASE_NAME, "run", "x"):
        refused = bert_jax_here(*words, f"--config.work_dir={bucket}/run")
    message = f"work_dir={bucket}/run: another run is writing to it (process {os.getpid()} on"
    assert refused.code == 2 and message in refused.errors
    write_bytes(bucket / "mine/notes.txt", "mine")
    refused = bert_jax_here(*words, f"--config.work_dir={bucket}/mine")
    assert refused.code == 2 and "there are objects that no run wrote" in refused.errors
    assert find(bucket / "mine" / LEASE_NAME) is None
    missing = f"{bucket.scheme}://no-such-bucket/x"
    refused = bert_jax_here(*words, f"--config.work_dir={missing}")
    assert f"work_dir={missing}: the bucket 'no-such-bucket' does not exist" in refused.errors
    assert "not started" in bert_jax_here("status", f"{bucket}/run").output
    assert not list(list_objects(bucket / "run"))
