"""Test that checkpoints in a bucket get the same scores as on a disk, even after kills."""

import json
from pathlib import Path

import pytest

from bert_jax.runs.bucket_layout import read_layout
from bert_jax.runs.bucket_logs import read_log
from bert_jax.storage.errors import StorageError
from bert_jax.storage.objects import find, list_objects
from bert_jax.storage.urls import ObjectUrl

from ..commands import Command
from ..downstream.test_follow import TASK
from .test_runs import Pretraining, Runner, pretraining, run

__all__ = ["pretraining", "run"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a config file for a small task: classify which of two places a sentence is about."""
    directory = tmp_path_factory.mktemp("task")
    nouns = {"harbour": "boat sailor anchor".split(), "kitchen": "cook oven spoon".split()}
    rows = [
        f"The {noun} was {number}.,{place}"
        for number in range(4)
        for place, words in nouns.items()
        for noun in words
    ]
    for split in ("train", "validation"):
        (directory / f"{split}.csv").write_text("\n".join(["text,place", *rows]) + "\n")
    file = directory / "places.py"
    file.write_text(TASK.format(directory), encoding="utf-8")
    return file


Score = dict[str, float]


def scores(log: bytes) -> dict[int, Score]:
    """Return the scores of each checkpoint in a log."""
    return {entry["step"]: entry["scores"] for entry in map(json.loads, log.splitlines())}


@pytest.fixture(scope="module")
def on_disk(
    pretraining: Pretraining,
    task: Path,
    bert_jax: Command,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[int, Score]:
    """Return the scores of the checkpoints of a run on disk."""
    run = Runner(bert_jax, tmp_path_factory.mktemp("follow"))
    run("follow", pretraining.on_disk, "--config", task, "--once")
    return scores((pretraining.on_disk / "downstream.jsonl").read_bytes())


def in_common(ours: dict[int, Score], theirs: dict[int, Score]) -> dict[int, Score]:
    """Return the entries of `ours` whose steps are also in `theirs`."""
    return {step: ours[step] for step in sorted(ours.keys() & theirs.keys())}


def log_of(url: ObjectUrl) -> bytes:
    try:
        return read_log(url / "downstream.parts")
    except StorageError:  # A part was replaced while it was being read.
        return b""


def test_a_run_and_its_follower_are_killed(
    run: Runner,
    pretraining: Pretraining,
    task: Path,
    on_disk: dict[int, Score],
    bucket: ObjectUrl,
) -> None:
    url = bucket / "runs/one"
    words = [*pretraining.words(url), "--config.checkpoint.keep_every=10"]
    follow = ["follow", url, "--config", task]
    run.kill(lambda: 10 in read_layout(url).checkpoints, *words)
    run.kill(lambda: bool(log_of(url)), *follow)
    begun = scores(log_of(url))
    follower = run.start(*follow)
    run(*words)
    output, errors = follower.communicate(timeout=400)
    assert follower.returncode == 0, output + errors
    found = scores(log_of(url))
    assert {10, 20, 30, 32} <= found.keys() and in_common(found, begun) == begun
    assert 32 in on_disk and in_common(found, on_disk) == in_common(on_disk, found)
    assert not any(f"after step {step}:" in output for step in begun)
    assert find(url / "downstream/.lease") is None
    names = {info.url.name for info in list_objects(url / "downstream")}
    assert names == {"checkpoints.json", "output.txt"}


def test_a_run_that_fine_tunes_its_own_checkpoints_is_killed(
    run: Runner,
    pretraining: Pretraining,
    task: Path,
    on_disk: dict[int, Score],
    bucket: ObjectUrl,
) -> None:
    url = bucket / "runs/two"
    words = [
        *pretraining.words(url),
        f"--config.evaluation.downstream=('{task}',)",
        "--config.evaluation.downstream_every=1",
    ]
    run.kill(lambda: bool(log_of(url)), *words)
    begun = scores(log_of(url))
    output, errors = run(*words)
    # The command waits for both leases at the same time.
    assert errors.count("waiting for up to") == 1
    found = scores(log_of(url))
    assert in_common(found, begun) == begun and len(found) > len(begun)
    assert found[32] == on_disk[32]
    assert "fine-tuned after step 32:  places" in output
