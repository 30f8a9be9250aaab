"""Test sweeps in a bucket."""

import json
import random
import re
from pathlib import Path

import pytest

from bert_jax.finetuning.sweep_directory import kept_before
from bert_jax.finetuning.sweep_results import read_results
from bert_jax.runs.bucket_layout import read_layout
from bert_jax.storage import lease as lease_module
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import (
    find,
    list_directory,
    list_objects,
    read_bytes,
    upload_directory,
    write_bytes,
)
from bert_jax.storage.urls import ObjectUrl

from .test_runs import Here, Pretraining, Runner, pretraining, run

__all__ = ["pretraining", "run"]

GRID = ["--batch-sizes", "8", "--learning-rates", "1e-2", "1e-3", "--epochs", "1", "--seeds", "2"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = random.Random(4)
    nouns = {"sea": ("boat", "wave", "gull"), "land": ("fox", "oak", "trail")}
    rows = [(rng.choice(nouns[label]), label) for label in ("sea", "land") * 30]
    file = tmp_path / "table.csv"
    lines = (f"a {noun} number {number},{label}" for number, (noun, label) in enumerate(rows))
    file.write_text("text,label\n" + "\n".join(lines) + "\n")
    return file


def words(output: object, init: object, data: Path, *more: str) -> list[str]:
    keys = ("max_length=32", "max_shapes=1", "evaluations_per_epoch=2", "tensorboard=False")
    return [
        *("sweep", "--config", "table", "--init", str(init), "--data", str(data)),
        *("--output", str(output), *GRID, *more),
        *(f"--config.{key}" for key in keys),
    ]


def without_times(results: bytes) -> list[dict]:
    runs = json.loads(results)["runs"]
    return [{name: x for name, x in each.items() if name != "seconds"} for each in runs]


@pytest.mark.slow
def test_a_sweep_that_is_killed_gives_the_results_of_one_on_disk(
    run: Runner,
    pretraining: Pretraining,
    bucket: ObjectUrl,
    table: Path,
    bert_jax_here: Here,
    tmp_path: Path,
) -> None:
    on_disk, url = tmp_path / "on_disk", bucket / "sweeps/table"
    run(*words(on_disk, pretraining.on_disk, table))
    upload_directory(pretraining.on_disk, bucket / "base", last="model.json")
    command = words(url, bucket / "base", table)
    names = [path.name for path in sorted((on_disk / "runs").iterdir())]

    def second_run_has_begun() -> bool:
        return find(url / "results.json") is not None and len(list_directory(url / "runs")[1]) > 1

    run.kill(second_run_has_begun, *command)
    partly, _ = run("status", url)
    finished = re.search(rf"sweep      {url}: .*\b(\d) finished", partly)
    assert finished is not None, partly
    output, errors = run(*command)
    assert f"{finished[1]} of 4 runs ended earlier" in output
    # The command waits once for the leases of the sweep and its run.
    assert errors.count("waiting for up to") == 1
    results = read_bytes(url / "results.json")
    assert without_times(results) == without_times((on_disk / "results.json").read_bytes())
    resumed = [
        name
        for name in names
        if b"this run's checkpoint at step" in read_bytes(url / "runs" / name / "output.txt")
    ]
    assert len(resumed) <= 1  # The run may have been killed before its first checkpoint.
    assert f"directory of the best run: {url}/runs/" in output
    assert f"report: {url}/report.html" in output
    assert read_bytes(url / "report.png").startswith(b"\x89PNG")
    kept = [name for name in names if read_layout(url / "runs" / name).checkpoints]
    assert kept == [path.parent.name for path in on_disk.glob("runs/*/checkpoints")]
    assert not [info.url for info in list_objects(url) if info.url.name == ".lease"]
    assert not list((run.cache / "bert_jax/runs").glob("*"))
    assert f"sweep      {url}: 4 finished" in bert_jax_here("status", str(url)).output
    evaluated = bert_jax_here("evaluate", f"{url}/runs/{kept[0]}")
    assert f"model      {url}/runs/{kept[0]}, step" in evaluated.output
    joint = ["--output", str(bucket / "joint")]
    reported = bert_jax_here("sweep", "--report-only", str(url), str(on_disk), *joint)
    assert f"report: {bucket}/joint/report.html" in reported.output
    assert read_results(url).runs == read_results(str(url)).runs and kept_before(url) == "best"


def test_other_directories_and_a_second_sweep_are_refused(
    bucket: ObjectUrl, table: Path, monkeypatch: pytest.MonkeyPatch, bert_jax_here: Here
) -> None:
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.1)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)
    with Lease(bucket / "sweep/.lease", "sweep", "x"):
        refused = bert_jax_here(*words(bucket / "sweep", "nowhere", table))
    message = f"--output {bucket}/sweep: another sweep is writing to it (process "
    assert refused.code == 2 and "another sweep is writing to it (process " in refused.errors, (
        message
    )
    write_bytes(bucket / "mine/notes.txt", "mine")
    refused = bert_jax_here(*words(bucket / "mine", "nowhere", table))
    assert refused.code == 2
    assert f"{bucket}/mine: there are objects that no sweep wrote, such as n" in refused.errors
    refused = bert_jax_here("sweep", "--report-only", str(bucket / "mine"))
    assert f"{bucket}/mine: contains no results.json" in refused.errors
    write_bytes(bucket / "run/model.json", "{}")
    refused = bert_jax_here(
        "sweep", "--report-only", str(bucket / "mine"), "--output", str(bucket / "run")
    )
    assert f"--output={bucket}/run: this is a work directory" in refused.errors
    assert {info.url.name for info in list_objects(bucket)} == {"notes.txt", "model.json"}
