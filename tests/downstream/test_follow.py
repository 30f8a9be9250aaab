"""Test fine-tuning from the checkpoints of finished, ongoing and resumed pretraining runs."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import pytest
from numpy.testing import assert_allclose
from tensorboardX.proto.event_pb2 import Event

from bert_jax import follow, pretrain, small_model
from bert_jax.downstream.scorer import DownstreamScorer, open_tasks
from bert_jax.downstream.tasks import load_tasks
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.recipes.load import load_config
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.rotary_changes import RotaryChange
from bert_jax.runs.work_dir import read_model, write_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training import curves, reporting
from bert_jax.training.distributed import StopRequest
from bert_jax.training.downstream_log import read_downstream_scores
from bert_jax.training.metrics_log import read_metrics

from ..commands import Finished

pytestmark = pytest.mark.slow  # These tests train complete runs.

TASK = """
from ml_collections import ConfigDict


def get_config():
    files = dict(train="{0}/train.csv", validation="{0}/validation.csv", first="text")
    files |= dict(label="place", labels=("harbour", "kitchen"))
    return ConfigDict(
        dict(
            work_dir="",
            init_from="",
            sentences=dict(files=files),
            max_length=16,
            num_epochs=1,
            batch_size=16,
            max_shapes=1,
            report_every_steps=1,
            optimizer=dict(peak_learning_rate=2e-2),
        )
    )
"""
STEPS = (2, 4, 6)


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reporting, "draw_curves", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a config file for a small task: classify which of two places a sentence is about."""
    directory = tmp_path_factory.mktemp("task")
    nouns = {
        "harbour": "boat sailor anchor wave".split(),
        "kitchen": "cook oven spoon soup".split(),
    }
    for split in ("train", "validation"):
        rows = [
            f"The {noun} was {number}.,{place}"
            for number in range(4)
            for place, words in nouns.items()
            for noun in words
        ]
        (directory / f"{split}.csv").write_text("\n".join(["text,place", *rows]) + "\n")
    file = directory / "places.py"
    file.write_text(TASK.format(directory), encoding="utf-8")
    return file


def config_of(tiny_config: Path, work_dir: Path, *words: str) -> PretrainConfig:
    settings = [f"work_dir={work_dir}", "phases.phase1.num_steps=6"]
    if not any(word.startswith("phases.phase2.") for word in words):
        settings.append("phases.phase2=None")
    settings += ["model.num_layers=1", "optimizer.warmup_steps=2", "evaluation.every_steps=2"]
    settings += ["evaluation.max_records=16", "checkpoint.every_steps=2", "checkpoint.keep_every=2"]
    changed = {word.partition("=")[0] for word in words}
    kept = [word for word in settings if word.partition("=")[0] not in changed]
    return load_config(tiny_config, [*kept, *words], kind="pretrain")


@pytest.fixture(scope="module")
def finished(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a finished run with checkpoints at `STEPS`."""
    work_dir = tmp_path_factory.mktemp("pretrained") / "run"
    assert pretrain(config_of(tiny_config, work_dir, "reporting.tensorboard=True")).finished
    return work_dir


@pytest.fixture(scope="module")
def followed(finished: Path, task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the finished run whose checkpoints have been scored."""
    work_dir = Path(shutil.copytree(finished, tmp_path_factory.mktemp("followed") / "run"))
    lines: list[str] = []
    result = follow(work_dir, [str(task)], on_report=lambda line: lines.append(str(line)))
    assert result.finished and [score.step for score in result.scores] == list(STEPS)
    assert [line.partition(":")[0] for line in lines] == [
        f"fine-tuned after step {step}" for step in STEPS
    ]
    return work_dir


def values(work_dir: Path) -> dict[tuple[str, int], dict[str, float]]:
    return {(x.task, x.step): dict(x.scores) for x in read_downstream_scores(work_dir)}


def test_every_checkpoint_of_a_finished_run_is_scored_once(
    followed: Path,
    finished: Path,
    task: Path,
    monkeypatch: pytest.MonkeyPatch,
    bert_jax_here: Callable[..., Finished],
) -> None:
    scores = read_downstream_scores(followed)
    assert {score.metric for score in scores} == {"accuracy"}
    assert all(score.scores.keys() >= {"accuracy", "loss"} for score in scores)
    assert len({score.scores["loss"] for score in scores}) == len(STEPS)
    assert len({score.checkpoint for score in scores}) == len(STEPS)
    # The run's own log is unchanged, and only the output of fine-tuning remains.
    assert read_metrics(followed / "metrics.jsonl") == read_metrics(finished / "metrics.jsonl")
    left = sorted(path.name for path in (followed / "downstream/places").iterdir())
    assert left == ["output.txt"]

    def refuse(*_: object) -> None:
        raise AssertionError("fine-tuned again")

    monkeypatch.setattr(DownstreamScorer, "_finetune", refuse)
    assert len(follow(followed, [str(task)]).scores) == len(STEPS)
    monkeypatch.setattr("bert_jax.cli.pretrain.enable_compilation_cache", lambda: None)
    assert bert_jax_here("follow", followed, "--config", task, "--every", "2").code == 0
    with pytest.raises(AssertionError, match="fine-tuned again"):
        follow(followed, [str(task)], overrides=["--config.num_epochs=2"])


def test_a_checkpoint_is_fine_tuned_with_its_own_rotary_angles(
    tiny_config: Path, task: Path, tmp_path: Path
) -> None:
    words = ["phases.phase2.rotary_theta=160000", "model.positions=rotary"]
    config = config_of(tiny_config, tmp_path / "run", *words, "phases.phase2.num_steps=2")
    assert config.total_steps == 8
    model = config.step_setup(jax.devices()[0]).model_config
    tokenizer = Tokenizer.load(tiny_config.parent / "tokenizer")
    changes = [RotaryChange(6, 160_000.0)]
    write_model(model, {}, tmp_path / "run", tokenizer=tokenizer, rotary_changes=changes)
    tasks = load_tasks([str(task)], (), tmp_path / "run", "--config")
    opened = open_tasks(tasks, WorkDir.on_disk(tmp_path / "run"), model, tokenizer)["places"]

    def started_from(run: FinetuneRun, step: int) -> FinetuneRun:
        model, _ = read_model(tmp_path / "run", step)
        return run.with_source(dataclasses.replace(run.source, model=model, step=step))

    early, late = started_from(opened, 6), started_from(opened, 7)
    assert early.compiled is opened.compiled and early.model.encoder.rotary_theta == 10_000
    assert late.model.encoder.rotary_theta == 160_000 and late.source.step == 7
    assert late.compiled.task.config == late.model
    assert started_from(late, 8).compiled is late.compiled


def test_a_growing_run_is_followed_to_its_end(
    followed: Path, finished: Path, task: Path, tmp_path: Path
) -> None:
    work_dir = Path(shutil.copytree(finished, tmp_path / "run"))
    aside = tmp_path / "aside"
    aside.mkdir()
    for step in STEPS[1:]:
        shutil.move(work_dir / f"checkpoints/{step}", aside)
    waiting = threading.Semaphore(0)
    lines: list[str] = []

    def report(line: object) -> None:
        lines.append(str(line))
        if lines[-1].startswith("waiting"):
            waiting.release()

    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(
            follow, work_dir, [str(task)], every=4, poll_seconds=0.05, on_report=report
        )
        for step in STEPS[1:]:
            assert waiting.acquire(timeout=60)
            (aside / str(step)).rename(work_dir / f"checkpoints/{step}")
        assert following.result().finished
    assert lines[0] == "waiting for a checkpoint after step 2 of 6"
    expected = values(followed)
    assert values(work_dir) == {key: expected[key] for key in (("places", 4), ("places", 6))}


class StopAfter(StopRequest):
    """A stop request that is made after a given number of checks."""

    def __init__(self, checks: int):
        super().__init__()
        self._checks = checks

    def stop_now(self) -> bool:
        self._checks -= 1
        return self._checks < 0


def test_a_stopped_follower_resumes_in_the_middle_of_a_task(
    followed: Path, finished: Path, task: Path, tmp_path: Path
) -> None:
    work_dir = Path(shutil.copytree(finished, tmp_path / "run"))
    stopped = follow(work_dir, [str(task)], once=True, stop=StopAfter(1))
    assert not stopped.finished and not stopped.scores
    (unfinished,) = (work_dir / "downstream/places").glob("step-2-*")
    assert (unfinished / "checkpoints").is_dir()
    assert follow(work_dir, [str(task)], once=True).finished
    assert values(work_dir) == values(followed)
    output = (work_dir / "downstream/places/output.txt").read_text()
    assert "this run's checkpoint at step" in output


def test_checkpoints_that_are_removed_meanwhile_are_skipped(
    finished: Path, task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_dir = Path(shutil.copytree(finished, tmp_path / "run"))
    original = DownstreamScorer.open

    def remove_first(scorer: DownstreamScorer, step: int) -> Any:
        if step < STEPS[-1]:
            shutil.rmtree(work_dir / f"checkpoints/{step}")
        return original(scorer, step)

    monkeypatch.setattr(DownstreamScorer, "open", remove_first)
    lines: list[str] = []
    result = follow(work_dir, [str(task)], on_report=lambda line: lines.append(str(line)))
    assert result.finished and [score.step for score in result.scores] == [6]
    skipped = "the run removed the checkpoint before it was read"
    assert [line.startswith(f"skipped    step {step}: {skipped}") for step, line in
            zip(STEPS, lines, strict=True)] == [True, True, False]  # fmt: skip


def test_a_run_fine_tunes_its_own_checkpoints_and_resumes(
    tiny_config: Path, finished: Path, followed: Path, task: Path, tmp_path: Path
) -> None:
    work_dir = tmp_path / "run"
    words = [f"evaluation.downstream=('{task}',)", "evaluation.downstream_every=2"]
    # Save only those checkpoints that will be fine-tuned.
    words += ["checkpoint.every_steps=100", "checkpoint.keep_best=0"]
    config = config_of(tiny_config, work_dir, *words)
    # The run checks for a stop request at 4 steps, in 2 evaluations, and before fine-tuning.
    stopped = pretrain(config, stop=StopAfter(7))
    assert not stopped.finished and stopped.step == 4
    assert not read_downstream_scores(work_dir)
    assert list((work_dir / "downstream/places").glob("step-4-*/checkpoints/1"))
    lines: list[str] = []
    assert pretrain(config, on_report=lambda line: lines.append(str(line))).finished
    expected = values(followed)
    assert values(work_dir) == {key: expected[key] for key in (("places", 4), ("places", 6))}
    assert sum(line.startswith("fine-tuned after step") for line in lines) == 2
    logs = [read_metrics(each / "metrics.jsonl") for each in (work_dir, finished)]
    losses = [{x["step"]: x["mlm_loss"] for x in log if x["kind"] == "train"} for log in logs]
    assert losses[0] == losses[1]
    # A follower would interfere with the run, but may take over after the run has ended.
    assert follow(work_dir, [str(task)], every=4).finished


def test_mistakes_are_refused_before_any_work(
    tiny_config: Path,
    finished: Path,
    task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = tmp_path / "missing.py"
    text = task.read_text(encoding="utf-8").replace("train.csv", "gone.csv")
    missing.write_text(text, encoding="utf-8")

    def refused(work_dir: Path, configs: Sequence[object], message: str, **options: Any) -> None:
        with pytest.raises(ValueError, match=message):
            follow(work_dir, list(map(str, configs)), **options)

    refused(finished, [missing], "missing: .*gone.csv")
    refused(finished, [task, task], "would both be called 'places' in the log")
    refused(finished, ["sst3"], "sst3: no such recipe or file")
    refused(finished, [task], "every=0: expected 1 or more", every=0)
    refused(tmp_path / "nothing", [task], "model.json")
    refused(finished, [task], "set the same key", overrides=["--config.init_from=x"])
    refused(Path(small_model("mini-sentiment")), [task], "this model was fine-tuned")
    assert not (finished / "downstream").exists()
    config = config_of(tiny_config, tmp_path / "run", f"evaluation.downstream=('{missing}',)")
    with pytest.raises(ValueError, match="evaluation.downstream: missing: .*gone.csv"):
        pretrain(config)
    monkeypatch.setattr("jax.process_count", lambda: 2)
    with pytest.raises(ValueError, match="has 2 processes. Remove the key, and start `bert-jax f"):
        pretrain(config)
    monkeypatch.setenv("JAX_NUM_PROCESSES", "2")
    refused(finished, [task], "`follow` must run as a single process")
    assert not (tmp_path / "run").exists()


def test_tensorboard_shows_the_scores(followed: Path) -> None:
    events = [
        Event.FromString(record)
        for file in sorted((followed / "tensorboard/downstream").glob("events.out.tfevents.*"))
        for record in records_of(file)
    ]
    shown = [
        (event.step, value.simple_value)
        for event in events
        for value in event.summary.value
        if value.tag == "places_accuracy"
    ]
    scores = read_downstream_scores(followed)
    assert [step for step, _ in shown] == list(STEPS)
    assert_allclose([value for _, value in shown], [score.scores["accuracy"] for score in scores])


def records_of(file: Path) -> Iterator[bytes]:
    """Yield the records of a TensorBoard file, which are framed as TFRecords."""
    content = file.read_bytes()
    start = 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        # The length is followed by its checksum, and the record by its own.
        yield content[start + 12 : start + 12 + length]
        start += length + 16


def test_the_scores_are_drawn_next_to_the_run(followed: Path, tmp_path: Path) -> None:
    entries = curves._downstream_entries(followed)
    assert [entry["step"] for entry in entries] == list(STEPS)
    assert all("downstream_places: accuracy" in entry for entry in entries)
    image = tmp_path / "curves.png"
    curves.draw_curves(followed / "metrics.jsonl", image, title="run")
    assert image.read_bytes()[:4] == b"\x89PNG"
    # After the run has gone back to step 2, later scores are not shown.
    copied = tmp_path / "run"
    copied.mkdir()
    shutil.copyfile(followed / "downstream.jsonl", copied / "downstream.jsonl")
    log = (followed / "metrics.jsonl").read_text().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_text("".join(log[:2]))
    assert [score.step for score in read_downstream_scores(copied)] == [2]
