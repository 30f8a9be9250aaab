"""Test following a run in a bucket while the run's own process writes it.

Fine-tuning is replaced by a constant score.
"""

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax import follow
from bert_jax.cli.main import main
from bert_jax.downstream import scorer as scorer_module
from bert_jax.downstream.scorer import DownstreamScorer, OpenCheckpoint
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.runs.bucket_layout import read_layout
from bert_jax.runs.bucket_logs import read_log
from bert_jax.runs.bucket_scores import open_scores
from bert_jax.runs.followed import FollowedRun
from bert_jax.runs.locations import WorkDir, open_work_dir
from bert_jax.runs.uploads import Uploads
from bert_jax.storage import lease as lease_module
from bert_jax.storage import objects
from bert_jax.storage.errors import StorageError
from bert_jax.storage.lease import Lease
from bert_jax.storage.objects import find, read_bytes, write_bytes
from bert_jax.storage.urls import ObjectUrl
from bert_jax.training import reporting
from bert_jax.training.distributed import StopRequest
from bert_jax.training.metrics_log import read_metrics

from ..downstream.test_changing_checkpoints import saved, scored
from .conftest import Emulator

__all__ = ["saved"]


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = SimpleNamespace(scores={"accuracy": 0.5})
    monkeypatch.setattr(scorer_module, "train", lambda *_, **__: True)
    monkeypatch.setattr(scorer_module, "read_outcome", lambda _: outcome)
    monkeypatch.setattr(lease_module, "RENEWAL_SECONDS", 0.1)
    monkeypatch.setattr(lease_module, "POLL_SECONDS", 0.05)


@dataclass
class Run:
    """A run that copies its checkpoints to a bucket; the test saves these checkpoints."""

    saved: Path
    place: WorkDir

    @property
    def url(self) -> ObjectUrl:
        assert isinstance(self.place.location, ObjectUrl)
        return self.place.location

    @property
    def staging(self) -> Path:
        return self.place.path

    @property
    def uploads(self) -> Uploads:
        assert self.place.uploads is not None
        return self.place.uploads

    def save(self, *steps: int) -> None:
        for step in steps:
            shutil.copytree(
                self.saved / f"checkpoints/{step}", self.staging / f"checkpoints/{step}"
            )
            self.uploads.saved(step)
            self.uploads.raise_if_failed(wait=True)


@contextmanager
def running(saved: Path, url: ObjectUrl) -> Iterator[Run]:
    with open_work_dir(os.fspath(url)) as place:
        for name in ("model.json", "config.json"):
            shutil.copyfile(saved / name, place.path / name)
        shutil.copytree(saved / "tokenizer", place.path / "tokenizer", dirs_exist_ok=True)
        with place.uploading():
            place.settle()
            yield Run(saved, place)
        place.finished = True


@pytest.fixture
def run(saved: Path, bucket: ObjectUrl) -> Iterator[Run]:
    with running(saved, bucket / "runs/run") as started:
        yield started


def lines_of(run: Run, after: Callable[[str], None] = lambda _: None) -> list[str]:
    """Follow a run to its end, call `after` on each reported line, and return the lines."""
    lines: list[str] = []

    def report(line: object) -> None:
        lines.append(str(line))
        after(lines[-1])

    task = str(run.saved / "places.py")
    assert follow(run.url, [task], poll_seconds=0.05, on_report=report).finished
    return lines


def test_checkpoints_are_scored_as_they_appear(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.staging / "metrics.jsonl").write_text('{"kind": "train", "step": 6, "loss": 1.0}\n')
    drawn: list[int] = []

    def draw(log: Path, curves: Path, title: str) -> None:
        drawn.append(len(read_metrics(log)))
        curves.write_bytes(title.encode())

    monkeypatch.setattr(reporting, "draw_curves", draw)
    run.save(2, 4)
    before = read_log(run.url / "metrics.parts")

    def finish(line: str) -> None:
        if line.startswith("waiting"):
            # This checkpoint is removed when the next one is saved.
            shutil.rmtree(run.staging / "checkpoints/2")
            run.save(6)

    waiting = "waiting for a checkpoint after step 4 of 6"
    assert lines_of(run, finish) == [*scored(2, 4), waiting, *scored(6)]
    log = read_log(run.url / "downstream.parts")
    assert log.count(b"\n") == 3 and before and read_log(run.url / "metrics.parts") == before
    assert drawn == [1, 1, 1] and read_bytes(run.url / "curves.png") == b"run"
    assert b"after step 6" in read_bytes(run.url / "downstream/places/output.txt")
    assert find(run.url / "downstream/.lease") is None
    assert list((tmp_path / "cache/bert_jax/runs").glob("*")) == [run.staging.parent]
    assert lines_of(run) == []  # All checkpoints have been scored.
    assert read_log(run.url / "downstream.parts") == log


def test_the_run_does_not_overwrite_the_scores(saved: Path, bucket: ObjectUrl) -> None:
    url, task = bucket / "run", str(saved / "places.py")
    with running(saved, url) as run:
        run.save(2, 4)
        follow(url, [task], once=True)
    # The run is resumed with a copy of these scores, and more are written in the meantime.
    with running(saved, url) as run:
        copy = run.staging / "downstream.jsonl"
        assert copy.read_bytes() == read_log(url / "downstream.parts")
        run.save(6)
        result = follow(url, [task], once=True)
        copy.write_text("stale\n")
    assert [score.step for score in result.scores] == [2, 4, 6]
    assert read_log(url / "downstream.parts").count(b"\n") == 3


def test_the_scores_of_a_run_that_was_copied_from_a_disk_are_extended(
    bucket: ObjectUrl, tmp_path: Path
) -> None:
    write_bytes(bucket / "run/downstream.jsonl", "1\n")
    for expected in ("1\n", "1\n2\n"):
        with open_scores(WorkDir(bucket / "run", tmp_path)) as scores:
            log = tmp_path / "downstream.jsonl"
            assert log.read_text() == expected
            log.write_text("1\n2\n")
            scores.publish()
    assert read_log(bucket / "run/downstream.parts") == b"1\n2\n"


def test_a_checkpoint_that_is_removed_while_it_is_read_is_skipped(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(2, 4, 6)
    original, removed = DownstreamScorer.open, []

    def remove_while_reading(scorer: DownstreamScorer, step: int) -> OpenCheckpoint:
        if step == 2 and not removed:
            removed.append(step)
            run.uploads._remove_checkpoints([2])
        return original(scorer, step)

    monkeypatch.setattr(DownstreamScorer, "open", remove_while_reading)
    skipped, *others = lines_of(run)
    assert skipped.startswith(
        "skipped    step 2: the run removed the checkpoint before it was read"
    )
    assert others == scored(4, 6)


def test_an_interrupted_task_continues_on_the_same_machine(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(2, 4, 6)
    seen: list[bool] = []

    def train(started: FinetuneRun, stop: StopRequest, **_: object) -> bool:
        file = started.work_dir / "checkpoints/saved"
        seen.append(file.is_file())
        file.parent.mkdir(exist_ok=True)
        file.touch()
        return len(seen) > 1

    monkeypatch.setattr(scorer_module, "train", train)
    assert not follow(run.url, [str(run.saved / "places.py")]).finished
    assert lines_of(run) == scored(2, 4, 6)
    assert seen == [False, True, False, False]


def test_waiting_makes_one_request_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save(2, 4)
    original, refresh = objects.with_retries, FollowedRun.refresh
    requests: list[str] = []
    polls: list[list[str]] = []

    def count(
        request: Callable[[], Any], classify: Any, url: ObjectUrl, action: str, *more: Any
    ) -> Any:
        if threading.current_thread() is threading.main_thread() and "writing" not in action:
            requests.append(f"{action} {url}")
        return original(request, classify, url, action, *more)

    def poll(followed: FollowedRun, *, fully: bool = False) -> None:
        requests.clear()
        refresh(followed, fully=fully)
        polls.append(list(requests))
        if len(polls) == 20:
            run.save(6)

    monkeypatch.setattr(objects, "with_retries", count)
    monkeypatch.setattr(FollowedRun, "refresh", poll)
    follow(run.url, [str(run.saved / "places.py")], poll_seconds=0.02)
    assert polls[10:20] == [[f"reading {run.url}/checkpoints.json"]] * 10


def test_a_second_follower_and_a_missing_run_are_refused(
    run: Run, bucket: ObjectUrl, capsys: pytest.CaptureFixture[str]
) -> None:
    run.save(2)
    words = ["--config", str(run.saved / "places.py"), "--once"]
    with Lease(run.url / "downstream/.lease", "process that scores checkpoints", str(run.url)):
        assert main(["follow", str(run.url), *words]) == 2
    message = f"{run.url}: another process that scores checkpoints is writing to it (process "
    assert f"error: {message}{os.getpid()}" in capsys.readouterr().err
    assert main(["follow", f"{bucket}/nothing", *words]) == 2
    error = capsys.readouterr().err
    assert f"error: {bucket}/nothing: " in error and "model.json" in error
    assert main(["follow", f"{bucket.scheme}://no-such-bucket/run", *words]) == 2
    assert "the bucket 'no-such-bucket' does not exist" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_by_its_url_and_scored_when_it_is_restored(run: Run) -> None:
    run.save(2, 4)
    damaged = read_layout(run.url).directories[4] / "checksums.json"
    intact = read_bytes(damaged)
    write_bytes(damaged, "{}")

    def restore(line: str) -> None:
        if line.startswith("warning"):
            write_bytes(damaged, intact)
        if line.startswith("fine-tuned after step 4"):
            run.save(6)

    lines = lines_of(run, restore)
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert f"step 4 is skipped: {run.url}/checkpoints/4: the checkpoint at step 4 is da" in warning
    assert [line for line in lines if line.startswith("fine")] == scored(2, 4, 6)


def test_expired_credentials_end_the_command(run: Run, emulator: Emulator) -> None:
    run.save(2, 4)

    def expire(line: str) -> None:
        if line.startswith("waiting"):
            emulator.expire_credentials(after=0)

    with pytest.raises((StorageError, ValueError), match="there are no valid credentials"):
        lines_of(run, expire)
    emulator.clear_faults()
    assert read_log(run.url / "downstream.parts").count(b"\n") == 2
