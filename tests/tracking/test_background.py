"""Test that a tracker receives all reports, and that a failing tracker does not stop a run."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bert_jax.goodput.entries import EndState
from bert_jax.pretraining.config import ReportingConfig
from bert_jax.tracking import background
from bert_jax.tracking.background import BackgroundTracker, check_trackers
from bert_jax.tracking.tracker import TrackedRun, read_tracked_ids
from bert_jax.training.reports import EvaluationReport, Message, TrainReport


@dataclass
class Recorder:
    """A tracker that records what it receives; it raises an error at step 3 if `fails` is set."""

    tracked: TrackedRun
    fails: bool = False
    logged: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    state: EndState | None = None

    @property
    def tracked_id(self) -> str:
        return self.tracked.tracked_id or "new"

    def log(self, values: Mapping[str, float], step: int) -> None:
        if self.fails and step == 3:
            raise ConnectionError("the server is gone")
        self.logged.append((step, dict(values)))

    def finish(self, state: EndState) -> None:
        self.state = state


def train(step: int, loss: float = 2.0) -> TrainReport:
    return TrainReport(
        *(step, 10, {"loss": loss}, 0.1, 30.0, None, 0.0, None, 1.0, 1),
        compiling=False,
        goodput=0.5,
    )


def test_reports_are_sent_in_order(tmp_path: Path) -> None:
    recorder = Recorder(TrackedRun(tmp_path, {}, None))
    tracker = BackgroundTracker("wandb", recorder.tracked, lambda name, tracked: recorder)
    for report in (train(1), Message("text"), EvaluationReport(1, {"mlm_loss": 3.0}), train(2)):
        tracker(report)
    tracker(EvaluationReport(2, {"mlm_loss": float("nan"), "mlm_accuracy": 0.5}))
    tracker.close("finished")
    speed = {"train/learning_rate": 0.1, "train/tokens_per_second": 30.0, "train/stall": 0.0}
    assert recorder.logged == [
        (1, {"train/loss": 2.0, **speed, "train/goodput": 0.5}),
        (1, {"held_out/mlm_loss": 3.0}),
        (2, {"train/loss": 2.0, **speed, "train/goodput": 0.5}),
        (2, {"held_out/mlm_accuracy": 0.5}),
    ]
    assert recorder.state == "finished"
    assert read_tracked_ids(tmp_path) == {"wandb": "new"}


def test_a_failing_tracker_is_abandoned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(TrackedRun(tmp_path, {}, "known"), fails=True)
    tracker = BackgroundTracker("mlflow", recorder.tracked, lambda name, tracked: recorder)
    for step in range(1, 6):
        tracker(train(step))
    tracker.close("finished")
    assert [step for step, _ in recorder.logged] == [1, 2] and recorder.state is None
    assert caplog.messages == [
        "mlflow: ConnectionError: the server is gone. The run continues without it."
    ]


@pytest.mark.parametrize("error", [OSError("no network"), SystemExit(1)])
def test_a_tracker_that_cannot_connect_is_abandoned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def connect(*_: object) -> Recorder:
        raise error

    tracker = BackgroundTracker("wandb", TrackedRun(tmp_path, {}, None), connect)
    tracker(train(1))
    tracker.close("finished")
    assert len(caplog.messages) == 1, caplog.text
    assert "The run continues without it" in caplog.text
    assert read_tracked_ids(tmp_path) == {}


def test_a_tracker_that_hangs_does_not_hang_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "_CLOSING_SECONDS", 0.1)
    monkeypatch.setattr(background, "_MAX_WAITING", 3)
    released = threading.Event()

    def connect(*_: object) -> Recorder:
        released.wait()
        return Recorder(TrackedRun(tmp_path, {}, "known"))

    tracker = BackgroundTracker("wandb", TrackedRun(tmp_path, {}, "known"), connect)
    began = time.monotonic()
    for step in range(3):
        tracker(train(step))
    tracker.close("finished")
    assert time.monotonic() - began < 5
    assert "it did not finish within 0 s" in caplog.text
    full = BackgroundTracker("wandb", TrackedRun(tmp_path, {}, "known"), connect)
    for step in range(4):
        full(train(step))
    assert "3 reports have not been sent" in caplog.text
    released.set()


def test_a_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background.importlib.util, "find_spec", lambda name: None)
    check_trackers((), "trackers")
    with pytest.raises(ValueError, match=r"pip install 'bert_jax\[wandb\]'"):
        check_trackers(("wandb",), "reporting.trackers")
    with pytest.raises(ValueError, match="listed twice"):
        check_trackers(("mlflow", "mlflow"), "reporting.trackers")
    assert ReportingConfig(trackers=("wandb", "mlflow")).trackers == ("wandb", "mlflow")


def test_a_damaged_file_of_ids_is_named(tmp_path: Path) -> None:
    for content in ("[]", "{", '{"wandb": 3}'):
        (tmp_path / "trackers.json").write_text(content)
        with pytest.raises(ValueError, match=r"trackers\.json: .*Remove it to create new"):
            read_tracked_ids(tmp_path)
