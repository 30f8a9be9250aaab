import io
import json
import logging
import math
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from bert_jax.cli.output import console_report
from bert_jax.training import curves
from bert_jax.training.curves import draw_curves
from bert_jax.training.downstream_log import DownstreamLog
from bert_jax.training.metrics_log import MetricsLog, read_metrics
from bert_jax.training.reporting import Reporter
from bert_jax.training.reports import Message

from ..commands import REPOSITORY


def make_reporter(work_dir: Path, stream: io.StringIO, start_step: int = 0) -> Reporter:
    return Reporter(
        work_dir,
        [(100, 1.0)],
        start_step=start_step,
        peak_flops=1e11,
        tensorboard=True,
        on_report=lambda report: print(report, file=stream),
    )


def report(reporter: Reporter, step: int, loss: float) -> None:
    reporter.train(
        step,
        {"loss": loss, "mlm_loss": loss - 0.5, "mlm_accuracy": 0.25, "nsp_accuracy": 0.5},
        learning_rate=1e-3,
        real_tokens=4000.0,
        flops=2e10,
        seconds=2.0,
        stall_seconds=0.1,
        steps=10,
    )


def test_a_run_is_reported_to_the_callback_the_log_and_tensorboard(tmp_path: Path) -> None:
    stream = io.StringIO()
    reporter = make_reporter(tmp_path, stream)
    for step in (10, 20):
        report(reporter, step, loss=8.0 - step / 10)
    reporter.evaluation(20, {"mlm_loss": 5.25, "mlm_accuracy": 0.125})
    reporter.close()

    first, second, held_out = stream.getvalue().splitlines()
    assert first.endswith("ETA -  (with compilation)")
    assert "step  20/100  loss 6.000  mlm 25.0%  nsp 50.0%  lr 1.00e-03  2k tok/s" in second
    # The run computes 2e10 FLOPs in 2 s, which is 10% of the device's 1e11 FLOP/s.
    assert "MFU 10.0%  stall 5.0%" in second
    assert held_out == "held out, after step 20:  mlm_loss 5.250  mlm_accuracy 12.5%"

    entries = read_metrics(tmp_path / "metrics.jsonl")
    assert [(entry["kind"], entry["step"]) for entry in entries] == [
        ("train", 10),
        ("train", 20),
        ("evaluation", 20),
    ]
    assert entries[1]["tokens_per_second"] == 2000.0
    assert entries[1]["utilisation"] == pytest.approx(0.1)
    assert [entry.get("compiling") for entry in entries] == [True, False, None]
    assert imread(tmp_path / "curves.png").ndim == 3
    board = b"".join(path.read_bytes() for path in (tmp_path / "tensorboard").iterdir())
    assert b"train/tokens_per_second" in board and b"held_out/mlm_loss" in board
    assert not list(tmp_path.glob("*.tmp"))


def test_a_resumed_run_has_one_history(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stopped = make_reporter(tmp_path, io.StringIO())
    for step in (10, 20, 30):
        report(stopped, step, loss=1.0)
        if step == 20:
            stopped.evaluation(20, {"mlm_loss": 5.0})
    stopped.close()
    with caplog.at_level(logging.INFO, logger="bert_jax"):
        resumed = make_reporter(tmp_path, io.StringIO(), start_step=20)
    assert "removed 1 entry after step 20" in caplog.text
    resumed.evaluation(20, {"mlm_loss": 5.0})
    report(resumed, 30, loss=2.0)
    resumed.close()
    entries = read_metrics(tmp_path / "metrics.jsonl")
    assert [(entry["kind"], entry["step"]) for entry in entries] == [
        ("train", 10),
        ("train", 20),
        ("evaluation", 20),
        ("train", 30),
    ]
    assert entries[-1]["loss"] == 2.0


def test_a_run_without_a_checkpoint_starts_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for loss in (5.0, 4.0):
        with caplog.at_level(logging.INFO, logger="bert_jax"):
            started = make_reporter(tmp_path, io.StringIO())
        started.evaluation(0, {"mlm_loss": loss})
        started.close()
    assert "removed 1 entry of a run without checkpoints" in caplog.text
    entries = read_metrics(tmp_path / "metrics.jsonl")
    assert entries == [{"kind": "evaluation", "step": 0, "mlm_loss": 4.0}]
    # The curves show an evaluation even before the first train entry.
    assert imread(tmp_path / "curves.png").ndim == 3


def test_the_log_of_a_killed_writer_is_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    program = (
        "import os, signal\n"
        "from bert_jax.training.metrics_log import MetricsLog\n"
        f"log = MetricsLog({str(path)!r}, start_step=0)\n"
        "log.append('train', 1, {'loss': 3.0})\n"
        'log._file.write(b\'{"kind": "train", "st\')\n'
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    assert not path.read_text().endswith("\n")
    log = MetricsLog(path, start_step=1)
    assert "skipped the last line, which a killed process did not complete" in caplog.text
    log.append("train", 2, {"loss": 2.0})
    log.close()
    assert [(entry["step"], entry["loss"]) for entry in read_metrics(path)] == [(1, 3.0), (2, 2.0)]


@pytest.mark.parametrize("line", ["{", "7", '{"kind": "train"}'])
def test_the_message_names_a_corrupt_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n' + line + '\n{"kind": "train", "step": 3}\n')
    with pytest.raises(ValueError, match="metrics.jsonl, line 2"):
        MetricsLog(path, start_step=3)
    assert line in path.read_text()


def test_values_that_are_not_finite_are_null_in_the_log(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", start_step=0)
    log.append("train", 1, {"loss": math.nan, "learning_rate": math.inf})
    log.close()
    text = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(text, parse_constant=pytest.fail)["loss"] is None


def test_curves_draw_every_metric_in_its_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", start_step=0)
    for step in range(1, 200):
        rates = {"learning_rate": 1e-3, "tokens_per_second": 1e4 if step > 1 else 1.0}
        extra = {"steps": 1, "seconds": 1.0, "compiling": step == 1}
        log.append("train", step, {"loss": 9.0, "mlm_loss": 8.0 / step, **rates, **extra})
    log.append("evaluation", 199, {"mlm_loss": 0.5, "mlm_perplexity": 1.6, "span_f1": 0.3})
    log.close()
    panels = {}
    dress = curves.format_axis

    def keep(axis: Axes, name: str) -> None:
        dress(axis, name)
        panels[axis.get_title("left")] = [list(line.get_ydata()) for line in axis.lines]

    monkeypatch.setattr(curves, "format_axis", keep)
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png", title="a run")
    assert list(panels) == [
        "Masked-token loss (nats)",
        "Span f1",
        "Learning rate",
        "Real tokens per second",
    ]
    raw, smooth, held_out, _ = panels["Masked-token loss (nats)"]
    assert raw == [8.0 / step for step in range(1, 200)]
    assert smooth[100] == pytest.approx(sum(raw[97:104]) / 7)
    assert held_out == [0.5]
    assert panels["Real tokens per second"] == [
        [1e4] * 198
    ]  # The interval that includes the compilation is left out.


def test_the_console_shows_messages_on_stdout_and_progress_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reporter = Reporter(
        tmp_path,
        [(100, 1.0)],
        start_step=0,
        peak_flops=None,
        tensorboard=False,
        on_report=console_report,
    )
    report(reporter, 10, loss=6.0)
    console_report(Message("start\nof a run"))
    reporter.evaluation(10, {"mlm_loss": 5.25})
    reporter.close()
    printed = capsys.readouterr()
    assert printed.out == "start\nof a run\n"
    train, held_out = printed.err.splitlines()
    assert train.startswith("step  10/100  loss 6.000") and train.endswith("(with compilation)")
    assert held_out == "held out, after step 10:  mlm_loss 5.250"


def test_an_empty_log_draws_nothing(tmp_path: Path) -> None:
    reporter = make_reporter(tmp_path, io.StringIO())
    reporter.close()
    assert not (tmp_path / "curves.png").exists()


def test_without_tensorboard_no_events_are_written(tmp_path: Path) -> None:
    reporter = Reporter(
        tmp_path,
        [(100, 1.0)],
        start_step=0,
        peak_flops=None,
        tensorboard=False,
    )
    report(reporter, 10, 1.0)
    reporter.close()
    assert "utilisation" not in read_metrics(tmp_path / "metrics.jsonl")[0]
    assert sorted(os.listdir(tmp_path)) == ["curves.png", "metrics.jsonl"]


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_tensorboard_events_are_written_without_importing_torch(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from bert_jax.training.reporting import TensorBoard
board = TensorBoard(Path(sys.argv[1]), 0)
board.add({"train/loss": 1.0}, 1)
board.close()
assert "torch" not in sys.modules
import torch
assert torch.zeros(1).item() == 0.0
"""
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, cwd=REPOSITORY)
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"train/loss" in events.read_bytes()


def test_matplotlib_is_only_imported_to_draw() -> None:
    program = """
import importlib, pkgutil, sys
import bert_jax.cli
for module in pkgutil.iter_modules(bert_jax.cli.__path__):
    importlib.import_module(f"bert_jax.cli.{module.name}")
assert "bert_jax.training.curves" in sys.modules
assert "matplotlib" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


def test_a_damaged_log_of_downstream_scores_does_not_stop_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "downstream.jsonl").write_text('{"kind": "downstream", "step": 10}\n')
    reporter = make_reporter(tmp_path, io.StringIO())
    for step in (10, 20):
        reporter.evaluation(step, {"mlm_loss": 5.25})
    reporter.close()
    (warning,) = (x.getMessage() for x in caplog.records if x.levelno == logging.WARNING)
    assert warning.startswith(f"{tmp_path / 'downstream.jsonl'}: damaged: missing key 'task'")
    assert warning.endswith("new log. The curves do not show the scores of fine-tuned checkpoints.")
    assert imread(tmp_path / "curves.png").ndim == 3
    # Scores can be added only to a log that can be read.
    with pytest.raises(ValueError, match="missing key 'task'"):
        DownstreamLog(tmp_path)
