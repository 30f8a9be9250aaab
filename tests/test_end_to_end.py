"""Check runs that are killed, stopped, moved or changed, using the command line."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax import files as checksums
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.runs.checkpoints import load_model
from bert_jax.training.metrics_log import read_metrics

from .commands import TIMEOUT

pytestmark = pytest.mark.slow  # These tests train complete runs in separate processes.

# These are the last steps of the tiny config's two phases.
BOUNDARY, TOTAL = 20, 32
# Log entry fields that are not computed by the model.
OTHER_FIELDS = {"kind", "tokens_per_second", "stall", "seconds", "compiling", "utilisation"}


def history(work_dir: Path, kind: str) -> dict[int, dict[str, float]]:
    """Return the model's logged metrics, keyed by step, and check that no step is logged twice."""
    entries = [entry for entry in read_metrics(work_dir / "metrics.jsonl") if entry["kind"] == kind]
    metrics = {e["step"]: {k: v for k, v in e.items() if k not in OTHER_FIELDS} for e in entries}
    assert len(metrics) == len(entries)
    return metrics


def parameters(work_dir: Path) -> dict[str, np.ndarray]:
    """Return the parameters in the newest checkpoint."""
    leaves = jax.tree.flatten_with_path(load_model(str(work_dir)).model)[0]
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def assert_equal(params: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """Check that parameters are equal down to the last bit."""
    assert params.keys() == expected.keys()
    for name in params:
        np.testing.assert_array_equal(params[name], expected[name], err_msg=name)


def logged_step(work_dir: Path) -> int:
    """Return the last step that a running process has logged, or 0."""
    log = work_dir / "metrics.jsonl"
    steps = re.findall(r'"step": (\d+)', log.read_text()) if log.exists() else []
    return int(steps[-1]) if steps else 0


def unfinished_saves(work_dir: Path) -> list[Path]:
    """Return checkpoints that are being written, or that a killed process left unfinished."""
    return [path for path in (work_dir / "checkpoints").glob("*") if not path.name.isdigit()]


@dataclass(frozen=True)
class Interrupted:
    """A run that had to be started five times before it finished.

    Attributes:
      work_dir: the work directory.
      stopped: a copy of the work directory, made after SIGTERM.
      stopped_at: the last step before SIGTERM.
      starts: what each start printed.
    """

    work_dir: Path
    stopped: Path
    stopped_at: int
    starts: list[str]


@pytest.fixture(scope="module")
def pretrain(tiny_config) -> Callable[..., list[str]]:
    """Return a function that builds a `pretrain` command for the tiny config."""

    def words(work_dir: Path, *overrides: str, config: Path = tiny_config) -> list[str]:
        named = [f"--config.work_dir={work_dir}", *(f"--config.{word}" for word in overrides)]
        return ["pretrain", "--config", str(config), *named]

    return words


@pytest.fixture(scope="module")
def uninterrupted(bert_jax, pretrain, tmp_path_factory) -> Path:
    """Train without interruptions, and return the work directory."""
    work_dir = tmp_path_factory.mktemp("runs") / "uninterrupted"
    bert_jax(*pretrain(work_dir))
    return work_dir


@pytest.fixture(scope="module")
def interrupted(bert_jax, pretrain, uninterrupted, tmp_path_factory) -> Interrupted:
    """Kill a run during a save and during a step, stop it, kill it again, and let it finish."""
    seed = int.from_bytes(os.urandom(4))
    print(f"interrupted at times drawn with seed {seed}")  # pytest shows this seed if a test fails.
    rng = random.Random(seed)
    work_dir = tmp_path_factory.mktemp("runs") / "interrupted"
    starts = []

    def start(*overrides: str) -> subprocess.Popen[str]:
        return bert_jax.start(*pretrain(work_dir, *overrides), killed=True)

    def kill(process: subprocess.Popen[str]) -> None:
        process.kill()
        starts.append(bert_jax.finish(process).output)
        assert process.returncode == -signal.SIGKILL

    saving = rng.choice(["5.", "10."])
    # Try several times, because a save takes only a tenth of a second and is easily missed.
    for _ in range(5):
        shutil.rmtree(work_dir, ignore_errors=True)
        starts.clear()
        process = start()
        bert_jax.wait_for(
            process,
            lambda: (
                any(p.name.startswith(saving) for p in unfinished_saves(work_dir))
                or logged_step(work_dir) >= 14
            ),
        )
        kill(process)
        if unfinished_saves(work_dir):
            break
    assert unfinished_saves(work_dir)
    process = start("loader.num_workers=2")
    step = logged_step(work_dir) + rng.randrange(1, 5)
    bert_jax.wait_for(process, lambda: logged_step(work_dir) >= step)
    time.sleep(rng.uniform(0, 0.05))
    kill(process)
    process = start()
    # Stop early enough that the next process can be killed in the second phase.
    step = min(logged_step(work_dir) + rng.randrange(1, 5), BOUNDARY + 2)
    bert_jax.wait_for(process, lambda: logged_step(work_dir) >= step)
    process.terminate()
    finished = bert_jax.finish(process)
    assert finished.code == 143, finished.errors
    starts.append(finished.output)
    stopped = work_dir.with_name("stopped")
    shutil.copytree(work_dir, stopped)
    stopped_at = logged_step(work_dir)
    process = start("loader.num_workers=1")
    step = rng.randrange(max(BOUNDARY, stopped_at) + 1, TOTAL - 3)
    bert_jax.wait_for(process, lambda: logged_step(work_dir) >= step)
    kill(process)
    starts.append(bert_jax(*pretrain(work_dir)).output)
    return Interrupted(work_dir, stopped, stopped_at, starts)


def test_interruptions_do_not_change_results(uninterrupted, interrupted):
    for kind, steps in (("train", range(1, TOTAL + 1)), ("evaluation", (16, TOTAL))):
        metrics = history(interrupted.work_dir, kind)
        assert list(metrics) == list(steps)
        # The metrics are equal down to the last bit.
        assert metrics == history(uninterrupted, kind)
    assert_equal(parameters(interrupted.work_dir), parameters(uninterrupted))


def test_every_start_resumes_from_the_newest_complete_checkpoint(interrupted):
    origins = re.findall(r"^start +(.*)$", "".join(interrupted.starts), re.M)
    steps = [int(match.group(1)) for o in origins if (match := re.search(r"at step (\d+)", o))]
    assert len(origins) == 5
    assert origins[0] == "random parameters (seed 0)"
    assert steps == sorted(steps) and steps[-1] >= BOUNDARY
    assert f"saved step {interrupted.stopped_at};" in interrupted.starts[2]
    assert origins[3] == f"this run's checkpoint at step {interrupted.stopped_at}"
    assert not unfinished_saves(interrupted.work_dir)


LONG = ("phases.phase1.num_steps=5000", "checkpoint.every_steps=5000", "loader.num_workers=1")


def test_a_second_run_in_the_same_work_directory_is_rejected(
    bert_jax, bert_jax_here, pretrain, tmp_path
):
    first = bert_jax.start(*pretrain(tmp_path, *LONG))
    bert_jax.wait_for(first, lambda: logged_step(tmp_path) >= 1)
    second = bert_jax_here(*pretrain(tmp_path, *LONG))
    assert second.code == 2 and f"{tmp_path}: another run is using this directory" in second.errors
    assert first.poll() is None
    first.kill()
    bert_jax.finish(first)


def test_ctrl_c_saves_a_checkpoint_and_exits(bert_jax, pretrain, interrupts_enabled, tmp_path):
    words = pretrain(tmp_path, *LONG, "model.vocab_size=1500")
    process = bert_jax.start(*words)
    bert_jax.wait_for(process, lambda: logged_step(tmp_path) >= 1)
    # Signal the whole process group, including the workers, as a terminal does.
    os.killpg(process.pid, signal.SIGINT)
    finished = bert_jax.finish(process)
    output = finished.output
    assert finished.code == 130, finished.errors
    assert "stopping after the current step" in finished.errors
    assert "Traceback" not in finished.errors
    advice = r"model.vocab_size=1,500, but .* Set --config.model.vocab_size=\d{3}\n"
    assert re.search(advice, output)
    step = re.search(r"saved step ([\d,]+);", output).group(1).replace(",", "")
    assert (tmp_path / "checkpoints" / step).is_dir()
    assert not unfinished_saves(tmp_path)


def test_ctrl_c_saves_a_checkpoint_after_output_pipes_are_closed(
    bert_jax, pretrain, interrupts_enabled, tmp_path
):
    process = bert_jax.start(*pretrain(tmp_path, *LONG))
    bert_jax.wait_for(process, lambda: logged_step(tmp_path) >= 1)
    process.stdout.close()
    process.stderr.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=TIMEOUT) == 130
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [
        str(logged_step(tmp_path))
    ]


def test_another_number_of_devices_trains_on_the_same_examples(
    bert_jax, pretrain, uninterrupted, interrupted
):
    bert_jax(*pretrain(interrupted.stopped), devices=4)
    expected, actual = history(uninterrupted, "train"), history(interrupted.stopped, "train")
    assert expected.keys() == actual.keys()
    for step in expected:
        # Other masked tokens would change the accuracies. Sums over devices only round differently.
        assert expected[step] == pytest.approx(actual[step], rel=2e-5), step


def test_a_work_directory_is_self_contained(uninterrupted, tiny_config):
    for number, length in enumerate(("32", "64"), start=1):
        manifest = (uninterrupted / f"manifest-phase{number}.json").read_bytes()
        assert manifest == (tiny_config.parent / length / "manifest.json").read_bytes()
    for file in (tiny_config.parent / "tokenizer").iterdir():
        # A run checks the fingerprint instead of this file.
        if file.name == checksums.CHECKSUMS_NAME:
            continue
        assert (uninterrupted / "tokenizer" / file.name).read_bytes() == file.read_bytes()
    resolved = json.loads((uninterrupted / "config.json").read_text())
    assert resolved.keys() == PretrainConfig.__dataclass_fields__.keys()
    assert resolved["optimizer"]["beta2"] == 0.999  # This is the default value.
    assert (uninterrupted / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(uninterrupted.rglob("*tmp*"))


def modification_times(directory: Path) -> dict[Path, int]:
    """Return the modification time of every file in a directory tree."""
    return {path: path.stat().st_mtime_ns for path in directory.rglob("*") if path.is_file()}


def test_a_finished_run_is_not_trained_further(bert_jax_here, pretrain, uninterrupted):
    before = modification_times(uninterrupted)
    finished = bert_jax_here(*pretrain(uninterrupted))
    assert finished.code == 0
    assert "checkpoint at step 32 (finished: nothing to do)" in finished.output
    assert "held-out MLM loss" in finished.output
    assert not re.search("^step ", finished.errors, re.M)
    after = modification_times(uninterrupted)
    assert before.keys() == after.keys()
    assert {path.name for path in after if after[path] != before[path]} <= {
        "config.json",
        "model.json",
    }


DIFFERENCES = {
    "model": (
        ["model.hidden_dim=32", "model.num_layers=1"],
        ["model.hidden_dim: 16 -> 32", "model.num_layers: 2 -> 1"],
    ),
    "seed": (["seed=7"], ["seed: 0 -> 7"]),
    "masking": (["masking.rate=0.3"], ["masking.rate: 0.15 -> 0.3"]),
    "batches": (["phases.phase1.batch_size=8"], ["phases.phase1.batch_size: 16 -> 8"]),
    "boundary": (["phases.phase1.num_steps=19"], ["phases.phase2.first_step: 20 -> 19"]),
}


@pytest.mark.parametrize(("overrides", "differences"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_changed_settings_are_rejected(
    bert_jax_here, pretrain, uninterrupted, overrides, differences
):
    before = modification_times(uninterrupted)
    finished = bert_jax_here(*pretrain(uninterrupted, *overrides))
    assert finished.code == 2
    assert "belongs to another run" in finished.errors
    for line in differences:
        assert line in finished.errors
    assert modification_times(uninterrupted) == before


def test_a_changed_corpus_is_rejected(
    bert_jax_here, pretrain, uninterrupted, tiny_text, tiny_config, tmp_path
):
    text = tmp_path / "without the last document.txt"
    text.write_text(tiny_text.read_text().rpartition("\n\n")[0] + "\n")
    source = ["--input", text, "--tokenizer", tiny_config.parent / "tokenizer"]
    options = ["--max-length", 32, "--held-out", 0.1, "--workers", 1]
    assert bert_jax_here("prepare", *source, "--output", tmp_path / "32", *options).code == 0
    finished = bert_jax_here(*pretrain(uninterrupted, f"phases.phase1.corpus={tmp_path / '32'}"))
    assert finished.code == 2
    assert re.search(r"phases.phase1.corpus: '[0-9a-f]{64}' -> '[0-9a-f]{64}'", finished.errors)


def test_divergence_is_reported_and_the_last_good_checkpoint_is_kept(
    bert_jax_here, pretrain, uninterrupted, tmp_path
):
    work_dir = tmp_path / "run"
    shutil.copytree(uninterrupted, work_dir)
    for checkpoint in (work_dir / "checkpoints").iterdir():
        if int(checkpoint.name) > BOUNDARY:
            shutil.rmtree(checkpoint)
    good = parameters(work_dir)
    finished = bert_jax_here(*pretrain(work_dir, "optimizer.peak_learning_rate=1e38"))
    assert finished.code == 2
    # Step 21 still starts with finite parameters, but its update makes them non-finite.
    assert re.search("error: step 22: .*mlm_loss is nan, .*training has diverged", finished.errors)
    assert list(history(work_dir, "train")) == list(range(1, 22))
    assert_equal(parameters(work_dir), good)
