"""Test calling fine-tuning, sweeps and evaluations from Python."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.evaluation import evaluate
from bert_jax.finetuning.sweep import sweep
from bert_jax.finetuning.sweep_results import read_results
from bert_jax.finetuning.training import FinetuneResult, finetune
from bert_jax.inference.classify import Classify
from bert_jax.recipes.load import load_config
from bert_jax.runs.checkpoints import load_model
from bert_jax.training.distributed import StopRequest
from bert_jax.training.reports import EvaluationReport, Message, Report, TrainReport

from .conftest import scores


def config_of(toy, work_dir: Path, *overrides: str) -> FinetuneConfig:
    values = (f"init_from={toy.source}", f"work_dir={work_dir}", *overrides)
    words = [f"--config.{value}" for value in values]
    return load_config(toy.root / "glue.py", words, kind="finetune")


def test_a_run_in_a_thread_is_silent_and_resumes(toy, tmp_path, capfd) -> None:
    results: list[FinetuneResult] = []
    before = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)]
    config = config_of(toy, tmp_path / "run", "num_epochs=1")
    thread = threading.Thread(target=lambda: results.append(finetune(config)))
    thread.start()
    thread.join()
    assert [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)] == before
    assert capfd.readouterr().out == ""
    (result,) = results
    assert result.finished and Path(result) == result.work_dir == tmp_path / "run"
    assert Classify(result).config.labels == load_model(result).config.labels
    saved = scores(tmp_path / "run")
    assert (result.best_step, dict(result.scores)) == (saved["step"], saved["scores"])
    assert [str(file) for file in result.predictions] == saved["predictions"]

    reports: list[Report] = []
    again = finetune(config, on_report=reports.append)
    assert again == result
    assert any("(finished: nothing to do)" in str(report) for report in reports)
    assert all(isinstance(report, Message) for report in reports)


def test_a_run_reports_the_entries_of_its_log(toy, tmp_path) -> None:
    reports: list[Report] = []
    finetune(config_of(toy, tmp_path / "run", "num_epochs=1"), on_report=reports.append)
    log = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    kinds = {"train": TrainReport, "evaluation": EvaluationReport}
    logged = [(kinds[e["kind"]], e["step"]) for e in map(json.loads, log)]
    progress = [report for report in reports if not isinstance(report, Message)]
    assert [(type(report), report.step) for report in progress] == logged
    assert str(progress[0]).endswith("(with compilation)")
    assert str(reports[0]).startswith("model ")
    assert any(str(report).startswith("best checkpoint by ") for report in reports)


def test_a_sweep_returns_its_best_run(toy, tmp_path, capfd) -> None:
    reports: list[Report] = []
    result = sweep(
        config_of(toy, tmp_path / "unused"),
        tmp_path / "sweep",
        batch_sizes=[16],
        learning_rates=[1e-2, 1e-6],
        num_epochs=[1],
        num_seeds=1,
        on_report=reports.append,
    )
    assert capfd.readouterr().out == ""
    assert result.finished and result.results == read_results(tmp_path / "sweep")
    best = result.results.best_run
    assert best is not None and result.best_directory is not None
    assert scores(result.best_directory)["scores"] == best.scores
    assert result.predictions == [result.best_directory / "predictions" / "SST-2.tsv"]
    assert all(file.is_file() for file in (*result.predictions, *result.report))
    assert sum(str(report).startswith("run ") for report in reports) == 2
    output = (result.best_directory / "output.txt").read_text()
    assert output.startswith("model ") and "held out, after step" in output
    assert "learning_rates=[0.01, 1e-06]" in result.results.provenance.command
    assert not (tmp_path / "unused").exists()


def test_an_evaluation_returns_the_scores_of_the_run(whole, tmp_path) -> None:
    result = evaluate(whole, predictions=tmp_path / "predicted")
    saved = scores(whole)
    assert result.step == saved["step"]
    assert result.sets["validation"].scores == pytest.approx(saved["scores"])
    assert [file.parent for file in result.sets["validation"].files] == [tmp_path / "predicted"]
    unlabeled = evaluate(whole, labeled=False)
    assert list(unlabeled.sets) == ["SST-2"] and unlabeled.sets["SST-2"].scores == {}


def test_a_run_stops_when_another_thread_asks_and_resumes(toy, tmp_path) -> None:
    stop, config = StopRequest(), config_of(toy, tmp_path / "run", "num_epochs=1")
    reports: list[Report] = []

    def on_report(report: Report) -> None:
        reports.append(report)
        if isinstance(report, TrainReport):
            other = threading.Thread(target=stop.request)
            other.start()
            other.join()

    stopped = finetune(config, on_report=on_report, stop=stop)
    assert not stopped.finished and stopped.best_step is None
    assert str(reports[-1]).endswith("run the same command to resume")
    assert finetune(config).finished
