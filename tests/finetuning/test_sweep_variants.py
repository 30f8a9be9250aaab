"""Test sweeps that vary config keys: their runs, results, reports, resumption and errors."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from bert_jax.cli import sweep as command
from bert_jax.cli.main import main
from bert_jax.finetuning import sweep as library
from bert_jax.finetuning import sweep_run
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.hyperparameters import Grid, Hyperparameters
from bert_jax.finetuning.sweep import SweepResult, sweep
from bert_jax.finetuning.sweep_checks import make_sweep
from bert_jax.finetuning.sweep_durations import Durations
from bert_jax.finetuning.sweep_results import read_results
from bert_jax.finetuning.sweep_run import Sweep
from bert_jax.finetuning.sweep_tables import comparison
from bert_jax.finetuning.training import finetune
from bert_jax.finetuning.variants import Variant
from bert_jax.recipes.load import load_config
from bert_jax.training.distributed import StopRequest
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.reports import Report

from .conftest import Toy

pytestmark = pytest.mark.slow

RATES = (1e-2, 2e-2)
GRID = ["--batch-sizes", "16", "--epochs", "1", "--seeds", "1", "--learning-rates", "1e-2", "2e-2"]
KEY = "tuning.top_layers"
THREE = ["--vary", f"{KEY}=-1,1,0", "--config.best_metric=loss", *GRID]
# The number of trainable parameters in the two-layer model, keyed by the number of trainable layers
# (-1: everything). A layer has 8,544 parameters, and the pooler has 32 * 32 + 32.
HEAD = 32 * 32 + 32 + 2 * 32 + 2
TRAINABLE = {0: HEAD, 1: 8544 + HEAD, -1: 20_546}


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's compilation cache unchanged."""
    monkeypatch.setattr(command, "enable_compilation_cache", lambda: None)


@pytest.fixture(scope="module")
def toy(toy: Toy, make_source) -> Toy:
    """Return the toy tasks with a two-layer model."""
    return dataclasses.replace(toy, source=make_source(num_layers=2))


def words(toy: Toy, output: Path, *more: object) -> list[str]:
    given = ["--config", toy.root / "glue.py", "--init", toy.source, "--output", output, *more]
    return ["sweep", *map(str, given)]


def config_of(toy: Toy, work_dir: Path, changes: Mapping[str, object]) -> FinetuneConfig:
    values = {"init_from": toy.source, "work_dir": work_dir, "batch_size": 16, "num_epochs": 1}
    return load_config(toy.root / "glue.py", values | changes, kind="finetune")


@pytest.fixture(scope="module")
def three(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a sweep over three approaches to fine-tuning."""
    output = tmp_path_factory.mktemp("sweeps") / "three"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "enable_compilation_cache", lambda: None)
        assert main(words(toy, output, *THREE)) == 0
    return output


def scores_of(output: Path) -> dict[tuple[int, float], dict[str, float]]:
    """Return the scores of each run, keyed by number of layers and learning rate."""
    runs = json.loads((output / "results.json").read_text())["runs"]
    pairs = [(run["dials"], run["scores"]) for run in runs]
    return {(dials["variant"][KEY], dials["learning_rate"]): each for dials, each in pairs}


def test_each_run_has_the_scores_of_a_plain_run_with_its_config(toy, three, tmp_path) -> None:
    found = scores_of(three)
    assert list(found) == [(layers, rate) for layers in (-1, 1, 0) for rate in RATES]
    for layers, rate in ((-1, 1e-2), (1, 2e-2), (0, 1e-2)):
        changes = {KEY: layers, "optimizer.peak_learning_rate": rate, "best_metric": "loss"}
        plain = finetune(config_of(toy, tmp_path / f"run{layers}", changes))
        assert dict(plain.scores) == found[layers, rate]
    assert len({values["loss"] for values in found.values()}) == 6


def test_the_table_compares_the_best_rate_of_each_approach(three, bert_jax_here) -> None:
    results = read_results(three)
    head, *rows = comparison(results)
    assert head[:4] == [KEY, "batch", "learning rate", "epochs"]
    found = scores_of(three)
    best = {n: min(RATES, key=lambda rate: found[n, rate]["loss"]) for n in (-1, 1, 0)}
    ranked = sorted(best, key=lambda layers: found[layers, best[layers]]["loss"])
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    assert [int(row[KEY]) for row in cells] == ranked
    for row in cells:
        layers = int(row[KEY])
        assert float(row["learning rate"]) == best[layers]
        assert row["trainable"] == f"{TRAINABLE[layers]:,}"
        assert row["loss"] == f"{found[layers, best[layers]]['loss']:.3f}"
    # These numbers are the same for all variants, so the table has no columns for them.
    assert "parameters" not in head and "examples" not in head
    report = (three / "report.html").read_text()
    assert report.count("<th>tuning.top_layers</th>") == 2
    assert "<h3>Each variant with its best hyperparameters</h3>" in report
    assert bert_jax_here("sweep", "--report-only", three).code == 0
    assert (three / "report.html").read_text() == report
    (kept,) = (path.parent for path in three.glob("runs/*/checkpoints"))
    run = results.best_run
    assert run is not None and run.hyperparameters.variant == Variant(((KEY, ranked[0]),))
    assert kept.name == f"{KEY}={ranked[0]}_batch16-rate{best[ranked[0]]}-epochs1-seed0"
    assert json.loads((kept / "config.json").read_text())["tuning"]["top_layers"] == ranked[0]
    assert (kept / "predictions/SST-2.tsv").is_file()


def test_each_run_ends_with_one_line_that_has_its_speed_and_the_time_left(
    toy, three, bert_jax_here
) -> None:
    again = bert_jax_here(*words(toy, three, *THREE))
    assert again.code == 0, again.errors
    assert "6 of 6 runs ended earlier" in again.output and "run 6/6" not in again.output
    shutil.rmtree(three / f"runs/{KEY}=0_batch16-rate0.01-epochs1-seed0")
    again = bert_jax_here(*words(toy, three, *THREE))
    assert again.code == 0, again.errors
    run = f"{KEY}=0, batch 16, learning rate 0.01, 1 epoch, seed 0"
    lines = again.output.splitlines()
    (ended,) = (line for line in lines if line.startswith("run 6/6"))
    assert ended.startswith(f"run 6/6  {run}  loss ")
    assert re.search(r"  best 0\.\d+  \d+s per epoch  ETA 0s$", ended)


def test_a_stopped_sweep_resumes_in_the_same_variant_from_python(toy, three, tmp_path) -> None:
    stop, config = StopRequest(), config_of(toy, tmp_path / "unused", {"best_metric": "loss"})
    reports: list[str] = []
    progress: list[str] = []

    def on_report(report: Report) -> None:
        reports.append(str(report))

    def on_progress(text: str) -> None:
        progress.append(text)
        if text.startswith("run 2/2  tuning.top_layers=0, "):
            stop.request()

    def call(values: list[int], **more) -> SweepResult:
        grid = {"batch_sizes": [16], "learning_rates": [1e-2], "num_epochs": [1], "num_seeds": 1}
        return sweep(config, tmp_path / "sweep", vary={KEY: values}, **grid, **more)

    stopped = call([-1, 0], on_report=on_report, on_progress=on_progress, stop=stop)
    assert not stopped.finished and reports[-1].startswith("report so far")
    assert [text.startswith("run 1/2") for text in reports].count(True) == 1
    first = "run 1/2  tuning.top_layers=-1, batch 16, learning rate 0.01, 1 epoch, seed 0  "
    assert progress[0] == f"{first}starting  ETA -"
    assert re.fullmatch(rf"{re.escape(first)}step \d+/\d+  ETA -", progress[1])
    assert re.search(r"  step \d+/\d+  ETA \d+", progress[-1])
    assert list(scores_of(tmp_path / "sweep")) == [(-1, 1e-2)]
    again = call([-1, 0], on_report=lambda report: reports.append(str(report)))
    assert again.finished and "1 of 2 runs ended earlier" in reports
    expected = {pair: each for pair, each in scores_of(three).items() if pair[1] == 1e-2}
    del expected[1, 1e-2]
    assert scores_of(tmp_path / "sweep") == expected
    assert "vary={'tuning.top_layers': [-1, 0]}" in again.results.provenance.command
    trained = [each.num_trainable for each in again.results.variants]
    assert trained == [TRAINABLE[-1], TRAINABLE[0]]
    values = [each.combination.variant.values for each in again.results.best_of_variants]
    assert sorted(values, key=str) == [{KEY: -1}, {KEY: 0}]


def test_values_can_be_added_but_not_mixed_with_another_sweep(toy, three, bert_jax_here) -> None:
    before = (three / "sweep.json").read_text()
    smaller = bert_jax_here(*words(toy, three, "--vary", f"{KEY}=0", *THREE[2:]))
    assert smaller.code == 0, smaller.errors
    assert "not in these results: 4 runs that ended here with other" in smaller.output
    assert json.loads((three / "sweep.json").read_text()) == json.loads(before)
    for changed, message in (
        (THREE[2:], f"varied keys: ['{KEY}'] -> []"),
        (["--vary", "patience=1,2", *THREE[2:]], f"varied keys: ['{KEY}'] -> ['patience']"),
        ([*THREE, "--config.patience=1"], "config.patience: 0 -> 1"),
        (["--vary", f"{KEY}=2", "--config.patience=1", *THREE[2:]], "config.patience: 0 -> 1"),
        (
            ["--vary", f"{KEY}=2", "--config.tuning.embeddings=False", *THREE[2:]],
            "config.tuning.embeddings: True -> False",
        ),
    ):
        refused = bert_jax_here(*words(toy, three, *changed))
        assert refused.code == 2, changed
        assert f"(that sweep -> this command):\n  {message}\n" in refused.errors
    assert "rates, epochs, seeds and the values of varied keys may change." in refused.errors
    assert "started that sweep, or use another --output. Batch" in refused.errors


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--vary", "tuning.top_layer=1"], "--vary tuning.top_layer=1: no such key; nearest: "),
        (["--vary", "tuning=1"], "--vary tuning=1 is a section; its keys are tuning.embeddings"),
        (["--vary", "tuning.top_layers=1,x"], "--vary tuning.top_layers=x: expected an integer"),
        (["--vary", "tuning.top_layers=1,"], "--vary tuning.top_layers=: expected an integer"),
        (
            ["--vary", "tuning.top_layers=1,-2"],
            "--vary tuning.top_layers=-2: expected -1 (all), 0, 1",
        ),
        (["--vary", "tuning.top_layers=1,3"], "--vary tuning.top_layers=3: expected at most 2"),
        (["--vary", "tuning.top_layers"], "missing values. Write --vary tuning.top_layers=VALUE"),
        (["--vary", "dropout=0,0.1,0.0"], "--vary dropout=0,0.1,0.0: contains duplicates."),
        (["--vary", "dropout=0", "--vary", "dropout=0.1"], "dropout is varied twice."),
        (["--vary", "batch_size=8,16"], "sweep sets this key itself. Use --batch-sizes"),
        (["--vary", "work_dir=x"], "--vary work_dir=x: a sweep sets this key itself. Use --output"),
        (["--vary", "seed=0,1"], "--vary seed=0,1: a sweep sets this key itself. Use --seeds."),
        (["--vary", "num_epochs=1"], "a sweep sets this key itself. Use --epochs"),
        (
            ["--vary", "optimizer.peak_learning_rate=1"],
            "a sweep sets this key itself. Use --learning-rates",
        ),
        (
            ["--vary", "dropout=0", "--config.dropout=0"],
            "--vary dropout=0 and --config.dropout=0 set the same key.",
        ),
        (["--vary", "init_from=a,b"], "--vary init_from=a,b and --init "),
        (["--vary", "glue.task=(a"], "--vary glue.task=(a: ) is missing."),
        (["--vary", "glue.directory=gs://a/b"], "'a' is not the name of a bucket."),
        (["--report-only", "x", "--vary", "dropout=0"], "--report-only does not train."),
        (["--vary", f"seed_{'x' * 9}=1"], f"--vary seed_{'x' * 9}=1: no such key"),
        (
            ["--vary", "max_length=24,40", "--vary", "dropout=0,0.1"],
            "--vary max_length=40: the model in ",
        ),
    ],
)
def test_invalid_variants_are_refused_before_the_first_run(
    toy, bert_jax_here, tmp_path: Path, more: list[str], message: str
) -> None:
    finished = bert_jax_here(*words(toy, tmp_path, *GRID, *more))
    assert finished.code == 2, finished.output
    assert message in finished.errors
    assert not list(tmp_path.iterdir())


def test_the_training_file_is_not_varied_and_replaced(toy, bert_jax_here, tmp_path: Path) -> None:
    more = ["--vary", "glue.directory=a,b", "--data", toy.root / "reviews"]
    finished = bert_jax_here(*words(toy, tmp_path, *GRID, *more))
    assert finished.code == 2
    assert "--vary glue.directory and --data" in finished.errors, finished.errors


class SweepOpened(Exception):
    """An exception raised once a sweep has opened all variants, so that it does not run them."""


def opened(config: FinetuneConfig, tmp_path: Path, vary: Mapping[str, list]) -> Sweep:
    """Return a sweep that has opened its variants but has not run anything."""
    made = []

    def watched(*args: object) -> Sweep:
        made.append(make_sweep(*args))  # type: ignore[arg-type]
        raise SweepOpened

    grid = {"batch_sizes": (16,), "learning_rates": RATES, "num_epochs": (1,), "num_seeds": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "make_sweep", watched)
        with pytest.raises(SweepOpened):
            sweep(config, tmp_path / "sweep", vary=vary, keep="best", **grid)
    return made[0]


def test_the_time_left_counts_the_epochs_that_were_trained(
    toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = opened(config_of(toy, tmp_path, {}), tmp_path, {"patience": [1]})
    (variant,) = found.grid.variants
    found.grid = Grid((16,), RATES, (40,), num_seeds=1, variants=(variant,))
    found.output.mkdir()
    added = []

    def watched(_: Durations, each: Hyperparameters, __: float, *, fraction: float) -> None:
        added.append((each, fraction))

    monkeypatch.setattr(Durations, "add", watched)
    assert found.run(StopRequest())
    early = {run.hyperparameters: run for run in found.results().runs}
    assert len(early) == len(added) == 2
    for each, fraction in added:
        steps, total = early[each].trained_steps, 40 * found.base.plan.steps_per_epoch
        assert early[each].step <= steps < total
        assert fraction == steps / total

    def diverging(*_: object, **__: object) -> bool:
        raise TrainingDiverged("step 3: the loss is NaN")

    monkeypatch.setattr(sweep_run, "train", diverging)
    found.grid = dataclasses.replace(found.grid, first_seed=1)
    assert found.run(StopRequest())
    assert all(run.diverged for run in found.results().runs) and len(added) == 2


def test_variants_share_what_their_keys_do_not_change(toy, make_source, tmp_path: Path) -> None:
    other = make_source(seed=3, num_layers=2)
    config = config_of(toy, tmp_path, {})
    vary = {"init_from": [toy.source, other], "max_length": [16, 24], "patience": [0, 2]}
    runs = opened(config, tmp_path, vary).opened
    assert len(runs) == 8
    sources = {variant: run.source for variant, run in runs.items()}
    checksums = {variant.values["init_from"]: each.checksum for variant, each in sources.items()}
    assert len(set(checksums.values())) == 2
    for variant, run in runs.items():
        values = variant.values
        assert run.source.init_from == values["init_from"]
        assert run.max_length == values["max_length"] == run.resolved.values["max_length"]
        assert run.monitoring.patience == values["patience"]
    for values, run in ((variant.values, run) for variant, run in runs.items()):
        for others, each in ((variant.values, each) for variant, each in runs.items()):
            assert (run.source is each.source) == (values["init_from"] == others["init_from"])
            assert (run.data is each.data) == (values["max_length"] == others["max_length"])
            assert run.compiled is each.compiled


def test_variants_with_other_checkpoint_metrics_are_compared_by_the_tasks_own(
    toy, tmp_path: Path
) -> None:
    config = config_of(toy, tmp_path, {})
    found = opened(config, tmp_path, {"best_metric": ["", "loss"]})
    assert (found.metric, found.chance_metric) == ("accuracy", "accuracy")
    assert [run.best_metric for run in found.opened.values()] == ["accuracy", "loss"]
    found = opened(config, tmp_path, {"best_metric": ["loss"]})
    assert (found.metric, found.chance_metric) == ("loss", "accuracy")


def test_tasks_with_other_metrics_are_refused(toy, tmp_path: Path) -> None:
    config = load_config(toy.root / "several.py", {"init_from": toy.source, "work_dir": "x"})
    metrics = [("micro_f1",), ("macro_f1",)]
    with pytest.raises(ValueError, match="compares all runs by the same metric"):
        opened(config, tmp_path, {"sentences.metrics": metrics})


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ({"tuning.top_layer": [1]}, r"^config\.tuning\.top_layer: no such key; nearest: tuning"),
        ({"tuning": [1]}, "config.tuning is a section; its keys are tuning.top_layers"),
        (
            {"batch_size": [1]},
            r"batch_size=\[1\]: a sweep sets this key itself. Use batch_sizes\.$",
        ),
        ({"seed": [1]}, r"seed=\[1\]: a sweep sets this key itself. Use num_seeds\.$"),
        ({KEY: []}, r"top_layers=\[\]: expected a list of one or more values"),
        ({KEY: "-1"}, "top_layers='-1': expected a list of one or more values"),
        ({KEY: -1}, "top_layers=-1: expected a list of one or more values"),
        ({KEY: [1, "0"]}, "top_layers: expected int, got '0'"),
        ({"dropout": [0, 0.0]}, r"dropout=\[0, 0.0\]: contains duplicates"),
        ({"max_length": range(4, 204), "patience": range(100)}, "20,000 combinations of values"),
    ],
)
def test_invalid_values_are_refused_in_python(toy, vary, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        sweep(config_of(toy, tmp_path, {}), tmp_path / "sweep", vary=vary)
    assert not (tmp_path / "sweep").exists()
