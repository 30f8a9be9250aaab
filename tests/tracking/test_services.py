"""Run the real clients of Weights & Biases, MLflow and TensorBoard without a server.

The extras `wandb`, `mlflow` and `tensorboard` are not part of the extra `dev`, since they pin older
versions of other packages. Tests whose package is missing are skipped.
"""

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.tracking.background import open_trackers
from bert_jax.tracking.tracker import TrackerName, read_tracked_ids
from bert_jax.training.reporting import TensorBoard
from bert_jax.training.reports import EvaluationReport, TrainReport

CONFIG = {"seed": 1, "model": {"hidden_dim": 128}, "optimizer": {"peak_learning_rate": 0.001}}
CHANGED = {**CONFIG, "optimizer": {"peak_learning_rate": 0.002}}


def train(step: int) -> TrainReport:
    return TrainReport(
        *(step, 10, {"loss": 8.0 - step}, 0.1, 30.0, None, 0.0, None, 1.0, 1), compiling=False
    )


def track_twice(name: TrackerName, work_dir: Path) -> None:
    """Track a run that is stopped after step 3 and resumes from step 2 with a different config."""
    for config, steps, state in ((CONFIG, (1, 2, 3), "stopped"), (CHANGED, (3, 4), "finished")):
        (tracker,) = open_trackers((name,), work_dir, config)
        for step in steps:
            tracker(train(step))
            tracker(EvaluationReport(step, {"mlm_loss": 9.0 - step}))
        tracker.close(state)  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: Any) -> Iterator[str]:
    pytest.importorskip("mlflow")
    place = f"sqlite:///{tmp_path}/mlflow.db" if request.param == "sqlite" else f"{tmp_path}/mlruns"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "encoders")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    yield place


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # These libraries issue warnings.
def test_mlflow(store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mlflow import MlflowClient

    run = tmp_path / "tiny"
    run.mkdir()
    track_twice("mlflow", run)
    assert "continues without it" not in caplog.text
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("encoders")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == read_tracked_ids(run)["mlflow"]
    assert (found.info.run_name, found.info.status) == ("tiny", "FINISHED")
    assert found.data.params == {
        "seed": "1",
        "model.hidden_dim": "128",
        "optimizer.peak_learning_rate": "0.001",
    }
    assert found.data.tags["changed.optimizer.peak_learning_rate"] == "0.002"
    history = client.get_metric_history(found.info.run_id, "train/loss")
    assert [(each.step, each.value) for each in history] == [
        *((1, 7.0), (2, 6.0), (3, 5.0)),
        *((3, 5.0), (4, 4.0)),
    ]
    assert found.data.metrics["held_out/mlm_loss"] == 5.0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_wandb_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_PROJECT", "encoders")
    run = tmp_path / "tiny"
    run.mkdir()
    track_twice("wandb", run)
    assert "continues without it" not in caplog.text
    tracked = read_tracked_ids(run)["wandb"]
    files = sorted((run / "wandb").glob(f"offline-run-*-{tracked}/run-{tracked}.wandb"))
    first, second = (complete_records(file) for file in files)
    assert [steps_and_losses(each) for each in (first, second)] == [
        [(1, 7.0), (2, 6.0), (3, 5.0)],
        [(3, 5.0), (4, 4.0)],
    ]
    assert config_of(first)["model"] == {"hidden_dim": 128}
    assert config_of(second)["optimizer"] == {"peak_learning_rate": 0.002}
    started = [record.run for record in second if record.WhichOneof("record_type") == "run"]
    assert (started[0].run_id, started[0].project) == (tracked, "encoders")
    assert started[0].display_name == "tiny"


def complete_records(file: Path) -> list[Any]:
    """Return the records in a file once a process of W&B has written the last one."""
    for _ in range(100):
        found = list(records(file))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{file} is incomplete")


def records(file: Path) -> Iterator[Any]:
    """Yield the records in a file, which is a LevelDB log after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    block_size, header = 1 << 15, struct.Struct("<IHB")
    content = file.read_bytes()
    assert content.startswith(b":W&B")
    place, parts = 7, []
    while place + header.size <= len(content):
        rest = block_size - place % block_size
        if rest < header.size:  # The end of a block is padded.
            place += rest
            continue
        _, length, kind = header.unpack_from(content, place)
        place += header.size
        parts.append(content[place : place + length])
        place += length
        if kind in (1, 4):  # This is a whole record, or the last part of one.
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def steps_and_losses(found: list[Any]) -> list[tuple[int, float]]:
    pairs = []
    for record in found:
        if record.WhichOneof("record_type") == "history":
            row = {
                item.key or ".".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            if "train/loss" in row:
                pairs.append((row["step"], row["train/loss"]))
    return pairs


def config_of(found: list[Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for record in found:
        kind = record.WhichOneof("record_type")
        if kind in ("run", "config"):
            config = record.run.config if kind == "run" else record.config
            values |= {item.key: json.loads(item.value_json) for item in config.update if item.key}
    return values


@pytest.mark.slow
def test_tensorboard_reads_the_event_files(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        board = TensorBoard(tmp_path, start)
        for step in steps:
            board(train(step))
            board(EvaluationReport(step, {"mlm_loss": 9.0 - step}))
        board.close()
        time.sleep(1)  # Event files are named after the second in which they are created.
    reader = EventAccumulator(str(tmp_path / "tensorboard"))
    reader.Reload()
    losses = [(event.step, event.value) for event in reader.Scalars("train/loss")]
    # Events for step 3 from the first start are hidden, since the run resumed from step 2.
    assert losses == [(1, 7.0), (2, 6.0), (3, 5.0), (4, 4.0)]
    assert len(reader.Scalars("held_out/mlm_loss")) == 4
