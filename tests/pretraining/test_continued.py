"""Test continued pretraining with `pretrain --init DIR --corpus DIR`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.models.compute_config import ComputeConfig
from bert_jax.models.config import EncoderConfig
from bert_jax.models.model import ModelConfig, define_model
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.command_line import pretrain_config
from bert_jax.recipes.load import load_config
from bert_jax.runs.checkpoints import load_model, load_model_parameters
from bert_jax.runs.work_dir import write_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.distributed import StopRequest
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reports import EvaluationReport, Report

from ..commands import Finished

Run = Callable[..., Finished]


@pytest.fixture(autouse=True)
def no_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)


@pytest.fixture(scope="module")
def source(tiny_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the work directory of a model trained without sentence pairs."""
    work_dir = tmp_path_factory.mktemp("source") / "run"
    values = {"work_dir": work_dir, "phases.phase2": None, "phases.phase1.num_steps": 2}
    values |= {"sentence_pairs": "none", "optimizer.warmup_steps": 1, "model.num_layers": 1}
    assert pretrain(load_config(tiny_config, values, kind="pretrain")).finished
    return work_dir


def corpus_of(tiny_config: Path, length: int) -> str:
    return str(tiny_config.parent / str(length))


def options(work_dir: Path, *more: str) -> list[str]:
    """Return overrides that shrink the recipe."""
    words = [f"work_dir={work_dir}", "phases.phase1.batch_size=16", "phases.phase1.num_steps=4"]
    words += ["evaluation.every_steps=3", "checkpoint.every_steps=2", "loader.num_workers=0"]
    words += ["reporting.every_steps=1", *more]
    return [f"--config.{word}" for word in words]


def metrics_of(work_dir: Path, kind: str) -> dict[int, dict[str, Any]]:
    speeds = ("seconds", "tokens_per_second", "stall", "compiling")
    return {
        entry["step"]: {name: value for name, value in entry.items() if name not in speeds}
        for entry in read_metrics(work_dir / "metrics.jsonl")
        if entry["kind"] == kind
    }


@pytest.mark.slow
def test_one_command_continues_a_model_and_resumes_exactly(
    tiny_config: Path, source: Path, bert_jax_here: Run, tmp_path: Path
) -> None:
    words = ["pretrain", "--init", source, "--corpus", corpus_of(tiny_config, 32)]
    finished = bert_jax_here(*words, *options(tmp_path / "run"))
    assert finished.code == 0, finished.errors
    assert f"start      the parameters of {source}\n" in finished.output
    models = [
        json.loads((directory / "model.json").read_text(encoding="utf-8"))
        for directory in (source, tmp_path / "run")
    ]
    assert models[1]["model"] == models[0]["model"] and models[0]["model"]["head"] == "masked_lm"
    config = json.loads((tmp_path / "run/config.json").read_text(encoding="utf-8"))
    assert config["sentence_pairs"] == "none" and config["optimizer"]["beta2"] == 0.98
    assert config["phases"]["phase1"]["sequence_length"] == 32
    # The evaluation before the first step gives the same metrics as the last evaluation in the
    # model's own run.
    evaluations = metrics_of(tmp_path / "run", "evaluation")
    assert list(evaluations) == [0, 3, 4]
    before = metrics_of(source, "evaluation")[2]
    assert evaluations[0] == before | {"step": 0}
    assert "held out, before the first step:" in finished.errors.partition("step 1/4")[0]
    loss = before["mlm_loss"]
    assert f"held-out MLM loss before training    {loss:.3f} nats per token" in finished.output
    board = b"".join(path.read_bytes() for path in (tmp_path / "run/tensorboard").iterdir())
    assert board.count(b"held_out/mlm_loss") == 3

    stop = StopRequest()

    def stop_after_step_2(report: Report) -> None:
        if str(report).startswith("step 2/"):
            stop.request()

    split = pretrain_config(
        None, options(tmp_path / "split"), str(source), corpus_of(tiny_config, 32)
    )
    stopped = pretrain(split, on_report=stop_after_step_2, stop=stop)
    assert not stopped.finished and 2 <= stopped.step < 4
    assert pretrain(split).finished
    for kind in ("train", "evaluation"):
        assert metrics_of(tmp_path / "split", kind) == metrics_of(tmp_path / "run", kind)
    states = [load_model(str(tmp_path / name)).model for name in ("run", "split")]
    for expected, actual in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_a_run_stopped_before_its_first_step_starts_over(
    tiny_config: Path, source: Path, tmp_path: Path
) -> None:
    config = pretrain_config(
        None, options(tmp_path / "run"), str(source), corpus_of(tiny_config, 32)
    )
    stop, lines = StopRequest(), []

    def stop_at_once(report: Report) -> None:
        lines.append(str(report))
        if lines[-1].startswith("start "):
            stop.request()

    stopped = pretrain(config, on_report=stop_at_once, stop=stop)
    assert not stopped.finished and stopped.step == 0
    assert lines[-1] == "stopped: before the first step; run the same command to start"
    # A killed run that started from other parameters may have logged its first evaluation.
    (tmp_path / "run/metrics.jsonl").write_text(
        '{"kind": "evaluation", "step": 0, "mlm_loss": 9}\n'
    )
    reports: list[Report] = []
    assert pretrain(config, on_report=reports.append).finished
    first = next(report for report in reports if isinstance(report, EvaluationReport))
    evaluations = metrics_of(tmp_path / "run", "evaluation")
    assert first.step == 0 and evaluations[0]["mlm_loss"] == first.metrics["mlm_loss"] < 9


def test_the_objective_comes_from_the_model_unless_the_config_sets_it(
    tiny_config: Path, source: Path, tmp_path: Path
) -> None:
    corpus = corpus_of(tiny_config, 32)

    def pairs(config: str | None, *more: str) -> str:
        words = options(tmp_path / "run", *more)
        return pretrain_config(config, words, str(source), corpus).sentence_pairs

    assert pairs(None) == pairs("tiny") == "none"
    assert pairs("small/bert_base", "phases.phase2=None") == "next_sentence"
    assert pairs(None, "sentence_pairs=sentence_order") == "sentence_order"
    # A run that has already started keeps its own objective.
    model = json.loads((source / "model.json").read_text(encoding="utf-8"))
    model["model"]["head"] = "pretraining"
    model["origin"]["sentence_pairs"] = "sentence_order"
    (tmp_path / "run/checkpoints/3").mkdir(parents=True)
    (tmp_path / "run/model.json").write_text(json.dumps(model), encoding="utf-8")
    assert pairs(None) == "sentence_order"


def test_a_model_with_computed_positions_continues_on_longer_sequences(
    tiny_config: Path, tmp_path: Path
) -> None:
    encoder = EncoderConfig(
        vocab_size=300, hidden_dim=16, num_layers=1, num_heads=2, ffn_dim=32, max_positions=32,
        positions="sinusoidal",
    )  # fmt: skip
    config = ModelConfig(encoder, "masked_lm")
    definition = define_model(config, ComputeConfig(dtype="float32", attention="xla"))
    initial = {name: np.asarray(x) for name, x in definition.init(jax.random.key(0)).items()}
    save_parameters(tmp_path / "source/checkpoints", initial, {})
    tokenizer = Tokenizer.load(tiny_config.parent / "tokenizer")
    write_model(config, {}, tmp_path / "source", tokenizer=tokenizer)
    tokenizer.save(tmp_path / "source/tokenizer")
    words = options(
        tmp_path / "run", "optimizer.peak_learning_rate=0.0", "evaluation.every_steps=0"
    )
    words = [word for word in words if "every_steps=3" not in word and "num_steps" not in word]
    words += ["--config.checkpoint.keep_best=0", "--config.phases.phase1.num_steps=1"]
    longer = [*words, "--config.model.max_positions=64"]
    arguments = (str(tmp_path / "source"), corpus_of(tiny_config, 64))
    with pytest.raises(ValueError, match="64 tokens, but the model has only 32 positions"):
        pretrain_config(None, words, *arguments)
    run = pretrain(pretrain_config(None, longer, *arguments))
    assert run.finished and run.model.config.encoder.max_positions == 64
    compute = ComputeConfig(dtype="float32", attention="xla")
    parameters = load_model_parameters(tmp_path / "run", run.model.config, compute)
    assert parameters.keys() == initial.keys()
    for name, expected in initial.items():
        np.testing.assert_array_equal(parameters[name], expected)


def test_mistakes_are_refused_before_any_work(
    tiny_config: Path, source: Path, bert_jax_here: Run, tmp_path: Path
) -> None:
    short, long = corpus_of(tiny_config, 32), corpus_of(tiny_config, 64)
    init = ["--init", source]
    key = "--config.phases.phase1.corpus=x"
    other = tmp_path / "other"
    other.mkdir()
    content = json.loads((source / "model.json").read_text(encoding="utf-8"))
    content["model"]["encoder"]["max_positions"] = 40
    (other / "model.json").write_text(json.dumps(content), encoding="utf-8")
    cases: list[tuple[list[Any], str]] = [
        ([], "--config is missing. Specify a recipe, or use --init to continue"),
        ([*init, "--corpus", short, key], f"--corpus={short} and {key} set the same key"),
        (
            ["--config", tiny_config, *init, "--corpus", short],
            f"--corpus={short}: the config has 2 phases, each with its own corpus. Set "
            "--config.phases.phase1.corpus, --config.phases.phase2.corpus instead.",
        ),
        (
            ["--init", other, "--corpus", long],
            f"--corpus={long}: its sequences have 64 tokens, but the model has only 40 positions. "
            "Prepare the corpus with --max-length 40, or add positions with "
            "--config.model.max_positions=64.",
        ),
        ([*init, "--corpus", tmp_path / "none"], "this corpus does not exist"),
    ]
    for words, message in cases:
        refused = bert_jax_here("pretrain", *words, f"--config.work_dir={tmp_path / 'run'}")
        assert refused.code == 2 and message in refused.errors, (words, refused.errors)
    assert not (tmp_path / "run").exists()
