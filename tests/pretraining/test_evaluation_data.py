"""Test that a run scores texts and minimal pairs as `evaluate` does, even after it is resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes

from bert_jax import extract, score_minimal_pairs, score_text
from bert_jax.pretraining import prepared_run
from bert_jax.pretraining.config import PretrainConfig
from bert_jax.pretraining.prepared_run import PretrainResult
from bert_jax.pretraining.run import pretrain
from bert_jax.recipes.load import load_config
from bert_jax.training import curves, memory
from bert_jax.training.distributed import StopRequest
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reports import (
    EvaluationReport,
    Report,
    TrainReport,
    is_on_other_data,
)

PAIRS = {
    "verb": ("agreement", ["The {} drifted.", "The {} drifting near."]),
    "determiner": ("nouns", ["A {} was there.", "Was a there {} was."]),
}
NOUNS = "boat sailor anchor wave owl fox".split()


@pytest.fixture(autouse=True, scope="module")
def no_curves() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_jax.training.reporting.draw_curves", lambda *_, **__: None)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, tiny_text: Path) -> Path:
    """Return a directory with a text, a directory of texts, and minimal pairs."""
    directory = tmp_path_factory.mktemp("data")
    documents = tiny_text.read_text(encoding="utf-8").split("\n\n")
    (directory / "novel.txt").write_text("\n\n".join(documents[:6]), encoding="utf-8")
    (directory / "more tales").mkdir()
    (directory / "more tales/a.txt").write_text(documents[7], encoding="utf-8")
    lines = [
        json.dumps(
            {
                "UID": paradigm,
                "linguistics_term": phenomenon,
                "sentence_good": good.format(noun),
                "sentence_bad": bad.format(noun),
            }
        )
        for paradigm, (phenomenon, (good, bad)) in PAIRS.items()
        for noun in NOUNS
    ]
    (directory / "pairs.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def config_of(tiny_config: Path, work_dir: Path, data: Path, *words: str) -> PretrainConfig:
    settings = [f"work_dir={work_dir}", "phases.phase2=None", "phases.phase1.num_steps=6"]
    settings += ["model.num_layers=1", "optimizer.warmup_steps=2", "evaluation.every_steps=3"]
    settings += ["evaluation.max_records=16", "checkpoint.every_steps=2", "averaging.ema_decay=0.5"]
    settings += ["mesh.data=2", "mesh.fsdp=2", "mesh.tensor=2"]
    settings += [f"evaluation.texts=('{data}/novel.txt','{data}/more tales')"]
    settings += [f"evaluation.minimal_pairs={data}/pairs.jsonl"]
    settings += ["evaluation.max_pairs=4", "evaluation.max_sentences=5"]
    settings += ["reporting.tensorboard=True"]
    changed = {word.partition("=")[0] for word in words}
    kept = [word for word in settings if word.partition("=")[0] not in changed]
    return load_config(tiny_config, [*kept, *words], kind="pretrain")


@pytest.fixture(scope="module")
def made(tiny_config: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a finished run, the count of compiled programs at each evaluation, and the output."""
    programs: list[Any] = []
    counts: list[int] = []
    lines: list[str] = []
    original = prepared_run.language_metrics

    def recorded(*args: Any) -> Any:
        metrics = original(*args)
        programs.append(metrics.programs)
        return metrics

    def count(report: Report) -> None:
        lines.append(str(report))
        if isinstance(report, EvaluationReport):
            counts.append(programs[0].num_compiled)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepared_run, "language_metrics", recorded)
        work_dir = tmp_path_factory.mktemp("evaluated") / "run"
        result = pretrain(config_of(tiny_config, work_dir, data), on_report=count)
    return result, counts, lines


@pytest.fixture(scope="module")
def run(made: Any) -> PretrainResult:
    return made[0]


def test_the_scores_equal_those_of_evaluate(
    run: PretrainResult, data: Path, tmp_path: Path
) -> None:
    """Compare a run whose parameters are split over eight devices with `evaluate` on one."""
    extract(run.work_dir, tmp_path / "average", 6, ema=True)
    for work_dir, prefix in ((run.work_dir, ""), (tmp_path / "average", "average_")):
        for name, path in (("novel", "novel.txt"), ("more_tales", "more tales")):
            scores = score_text(work_dir, data / path, max_length=32, max_sentences=5)
            values = run.metrics
            text = f"{prefix}text_{name}"
            assert values[f"{text}_mlm_loss"] == pytest.approx(scores.mlm_loss, rel=1e-5)
            assert values[f"{text}_mlm_accuracy"] == pytest.approx(scores.mlm_accuracy, abs=1e-9)
            perplexity = values[f"{text}_pseudo_perplexity"]
            assert perplexity == pytest.approx(scores.pseudo_perplexity, rel=1e-5)
        pairs = score_minimal_pairs(work_dir, data / "pairs.jsonl", max_pairs=4)
        assert len(pairs.pairs) == 8
        assert run.metrics[f"{prefix}pairs_accuracy"] == pairs.accuracy
        for phenomenon, accuracy in pairs.by_phenomenon.items():
            assert run.metrics[f"{prefix}pairs_{phenomenon}_accuracy"] == accuracy
    assert run.metrics["text_novel_mlm_loss"] != run.metrics["average_text_novel_mlm_loss"]


def test_the_scores_are_logged_and_compiled_once(made: Any) -> None:
    run, counts, lines = made
    entries = [x for x in read_metrics(run.work_dir / "metrics.jsonl") if x["kind"] == "evaluation"]
    assert [entry["step"] for entry in entries] == [3, 6]
    assert {name: entries[-1][name] for name in run.metrics} == dict(run.metrics)
    assert entries[0]["text_novel_mlm_loss"] != entries[1]["text_novel_mlm_loss"]
    assert len(set(counts)) == 1 and counts[0] > 0
    (text,) = (line for line in lines[0].splitlines() if line.startswith("text       novel: "))
    assert " tokens, pseudo-perplexity of 5 of " in text
    assert "pairs      8 minimal pairs, 2 paradigms" in lines[0].splitlines()
    # The last two reports are the goodput and the conclusion.
    (held_out, others) = lines[-3].splitlines()
    assert "text_" not in held_out and "average_mlm_loss" in held_out
    assert others.startswith("  text_novel_mlm_loss ") and "pairs_accuracy" in others


def test_tensorboard_has_the_scores(run: PretrainResult) -> None:
    (events,) = (run.work_dir / "tensorboard").iterdir()
    board = events.read_bytes()
    names = [name for name in run.metrics if is_on_other_data(name)]
    assert names
    for name in names:
        assert f"held_out/{name}".encode() in board, name


def test_the_scores_are_drawn(
    run: PretrainResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    panels: dict[str, list[list[float]]] = {}
    format_axis = curves.format_axis

    def keep(axis: Axes, name: str) -> None:
        format_axis(axis, name)
        panels[axis.get_title("left")] = [list(line.get_ydata()) for line in axis.lines]

    monkeypatch.setattr(curves, "format_axis", keep)
    curves.draw_curves(run.work_dir / "metrics.jsonl", tmp_path / "curves.png", title="a run")
    for title, name in (
        ("novel: masked-token loss (nats)", "text_novel_mlm_loss"),
        ("more_tales: pseudo-perplexity", "text_more_tales_pseudo_perplexity"),
        ("average: novel: masked-token accuracy", "average_text_novel_mlm_accuracy"),
        ("Minimal pairs", "pairs_accuracy"),
        ("average: minimal pairs", "average_pairs_accuracy"),
    ):
        assert panels[title][0][-1] == run.metrics[name]


def test_a_resumed_run_has_the_same_scores(
    tiny_config: Path, run: PretrainResult, data: Path, tmp_path: Path
) -> None:
    stop = StopRequest()

    def stop_at_step_4(report: Report) -> None:
        if isinstance(report, TrainReport) and report.step == 4:
            stop.request()

    config = config_of(tiny_config, tmp_path / "run", data)
    assert not pretrain(config, on_report=stop_at_step_4, stop=stop).finished
    assert pretrain(config).metrics == run.metrics


def test_runs_without_the_keys_keep_their_identity_and_metrics(
    tiny_config: Path, run: PretrainResult, data: Path, tmp_path: Path
) -> None:
    """Check that the keys for these scores may be added or removed when a run resumes."""
    words = ["evaluation.texts=()", "evaluation.minimal_pairs=''"]
    words += ["evaluation.max_pairs=20", "evaluation.max_sentences=100"]
    plain = config_of(tiny_config, tmp_path, data, *words)
    assert plain.identity() == config_of(tiny_config, tmp_path, data).identity()


def test_the_best_checkpoint_may_be_chosen_by_the_score_on_a_text(
    tiny_config: Path, data: Path, tmp_path: Path
) -> None:
    for metric in ("text_novel_mlm_loss", "average_text_more_tales_pseudo_perplexity"):
        config_of(tiny_config, tmp_path, data, f"checkpoint.best_metric={metric}")
    words = ["checkpoint.best_metric=pairs_accuracy", "checkpoint.lower_is_better=False"]
    config_of(tiny_config, tmp_path, data, *words)
    with pytest.raises(ValueError, match="'text_other_mlm_loss' is not a held-out metric"):
        config_of(tiny_config, tmp_path, data, "checkpoint.best_metric=text_other_mlm_loss")


def test_unusable_data_is_refused_before_the_run_starts(
    tiny_config: Path, data: Path, tmp_path: Path
) -> None:
    (tmp_path / "blank.txt").write_text("\n\n", encoding="utf-8")
    (tmp_path / "novel.jsonl").write_text('{"text": "A boat."}\n', encoding="utf-8")
    (tmp_path / "bad.jsonl").write_text('{"sentence_good": "A boat."}\n', encoding="utf-8")
    work_dir = tmp_path / "run"
    for words, message in (
        ([f"evaluation.texts=('{tmp_path}/missing.txt',)"], "no such file or directory"),
        ([f"evaluation.texts=('{tmp_path}/blank.txt',)"], "contains no usable document"),
        (
            [f"evaluation.texts=('{data}/novel.txt','{tmp_path}/novel.jsonl')"],
            "would both be called 'novel' in the log",
        ),
        ([f"evaluation.minimal_pairs={tmp_path}/none.jsonl"], "no such file or directory"),
        ([f"evaluation.minimal_pairs={tmp_path}/bad.jsonl"], "no field 'sentence_bad'"),
        (["evaluation.text_length=65"], "evaluation.text_length=65: expected 3 to 64"),
        (["evaluation.max_pairs=-1"], "max_pairs"),
        (
            ["evaluation.every_steps=0", "checkpoint.keep_best=0"],
            "evaluation.texts with evaluation.every_steps=0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            pretrain(config_of(tiny_config, work_dir, data, *words))
    assert not work_dir.exists()


@pytest.mark.parametrize("kind", ["texts", "minimal_pairs"])
def test_long_rows_that_do_not_fit_in_memory_are_refused(
    kind: str, tiny_config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use rows whose attention scores take 16 MiB per head, with one row on each device."""
    words = " ".join(["boat"] * 2046)
    (tmp_path / "long.txt").write_text(words, encoding="utf-8")
    pair = {"UID": "x", "linguistics_term": "x", "sentence_good": words, "sentence_bad": "boat"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n", encoding="utf-8")
    data = {
        "texts": [f"evaluation.texts=('{tmp_path}/long.txt',)", "evaluation.text_length=2048"],
        "minimal_pairs": [f"evaluation.minimal_pairs={tmp_path}/pairs.jsonl"],
    }[kind]
    settings = [f"work_dir={tmp_path}/run", "model.max_positions=4096", "model.num_heads=2"]
    config = load_config(tiny_config, [*settings, *data], kind="pretrain")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 8 * 32 * 2**20)
    with pytest.raises(ValueError, match=rf"one batch of evaluation.{kind} 3.* MiB.*\. Lower "):
        pretrain(config)
    assert not (tmp_path / "run").exists()
