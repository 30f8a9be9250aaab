"""Test that `pretrain` prints nothing, runs in any thread, calls `on_report`, stops and resumes."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.run import pretrain
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.recipes.load import load_config
from bert_jax.runs.checkpoints import load_model
from bert_jax.training.distributed import StopRequest
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reports import Report, TrainReport


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip drawing the curves, which would take half a second at every evaluation."""
    monkeypatch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)


def config_of(tiny_config: Path, work_dir: Path) -> PretrainConfig:
    words = [f"work_dir={work_dir}", "phases.phase2=None", "phases.phase1.num_steps=6"]
    words += ["evaluation.every_steps=3", "optimizer.warmup_steps=2", "checkpoint.every_steps=2"]
    return load_config(tiny_config, words, kind="pretrain")


@pytest.mark.slow
def test_a_run_in_a_thread_is_silent_and_resumes(
    tiny_config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tiny_config, tmp_path / "run")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    directory = Path.cwd()
    stop, lines = StopRequest(), []

    def stop_at_step_4(report: Report) -> None:
        lines.append(str(report))
        if isinstance(report, TrainReport) and report.step == 4:
            stop.request()

    with ThreadPoolExecutor(1) as pool:  # Runs work in any thread, not just the main thread.
        stopped = pool.submit(pretrain, config, on_report=stop_at_step_4, stop=stop).result()
        assert not stopped.finished and 4 <= stopped.step < 6
        num_threads = threading.active_count()
        resumed = pool.submit(pretrain, config).result()
        # Orbax keeps one idle thread for each checkpointer.
        assert threading.active_count() <= num_threads + 1
    assert any(line.startswith("stopped: saved step") for line in lines)
    assert resumed.finished and resumed.step == 6
    assert Path(resumed) == resumed.work_dir == tmp_path / "run"
    assert resumed.metrics.keys() >= {"mlm_loss", "mlm_accuracy", "nsp_loss", "mlm_perplexity"}
    assert capfd.readouterr() == ("", "")
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert Path.cwd() == directory
    loaded = load_model(str(tmp_path / "run"))
    assert resumed.model.config == loaded.config and resumed.model is resumed.model
    # A run that was not stopped ends with the same metrics.
    whole = pretrain(config_of(tiny_config, tmp_path / "whole"))
    assert whole.metrics == resumed.metrics


@pytest.mark.slow
def test_a_run_resumes_exactly_while_its_batch_size_and_masking_rate_change(
    tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[Any] = []
    steps_of = StepSetup.steps

    def recorded(*args: Any) -> Any:
        compiled.append(steps_of(*args))
        return compiled[-1]

    monkeypatch.setattr(StepSetup, "steps", recorded)
    words = ["phases.phase2=None", "phases.phase1.num_steps=7", "phases.phase1.batch_size=24"]
    words += ["phases.phase1.warmup_batch_sizes=(8,16)", "phases.phase1.warmup_batch_steps=2"]
    words += ["masking.rate=0.3", "masking.later_rates=(0.15,0.05)", "evaluation.every_steps=3"]
    words += ["evaluation.masking_rate=0.15", "optimizer.warmup_steps=2", "model.num_layers=1"]

    def config(name: str, *more: str) -> PretrainConfig:
        directory = f"work_dir={tmp_path / name}"
        changed = {word.partition("=")[0] for word in more}
        kept = [word for word in words if word.partition("=")[0] not in changed]
        return load_config(tiny_config, [*kept, directory, *more], kind="pretrain")

    lines: list[str] = []
    whole = pretrain(config("whole"), on_report=lambda report: lines.append(str(report)))
    assert "           batch-size warm-up: 2 steps each with 8, 16 sequences\n" in lines[0]
    train_step, evaluation_step = compiled[0]
    assert train_step._cache_size() == 3 and evaluation_step._cache_size() == 1
    stop = StopRequest()

    def stop_at_step_3(report: Report) -> None:
        if isinstance(report, TrainReport) and report.step == 3:
            stop.request()

    stopped = pretrain(config("split"), on_report=stop_at_step_3, stop=stop)
    # The run stops while batches have 16 rows, or just after.
    assert not stopped.finished and stopped.step < 6
    resumed = pretrain(config("split"))
    assert resumed.metrics == whole.metrics
    logs = [read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "split")]
    losses = [{x["step"]: x["mlm_loss"] for x in log if x["kind"] == "train"} for log in logs]
    assert losses[0] == losses[1] and list(losses[0]) == list(range(1, 8))
    with pytest.raises(ValueError, match="warmup_batch_steps: 2 -> 1"):
        pretrain(config("split", "phases.phase1.warmup_batch_steps=1"))


def test_print_as_the_callback_prints_every_line(
    tiny_config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tiny_config, tmp_path / "run")
    assert pretrain(config, on_report=print).finished
    output = capsys.readouterr()
    assert output.err == ""
    lines = output.out.splitlines()
    assert lines[0].startswith("model ") and "start      random parameters (seed 0)" in lines
    assert [line.split()[1] for line in lines if line.startswith("step ")] == [
        f"{step}/6" for step in range(1, 7)
    ]
    assert sum(line.startswith("held out, after step") for line in lines) == 2
    assert lines[-1] == f"curves: {tmp_path / 'run' / 'curves.png'}"
    # Once the run is finished, the same call returns at once, with the metrics from the log.
    again = pretrain(config, on_report=print)
    assert again.finished and again.step == 6 and "mlm_loss" in again.metrics
    assert "(finished: nothing to do)" in capsys.readouterr().out


def test_a_second_run_in_the_same_work_directory_is_refused(
    tiny_config: Path, tmp_path: Path
) -> None:
    config = config_of(tiny_config, tmp_path / "run")
    errors: list[ValueError] = []

    def start_another(report: Report) -> None:
        if isinstance(report, TrainReport) and not errors:
            with pytest.raises(ValueError, match="another run is using this directory") as refused:
                pretrain(config)
            errors.append(refused.value)

    assert pretrain(config, on_report=start_another).finished and errors
