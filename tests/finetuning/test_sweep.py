"""Test a sweep's grid, results and report, and compare its statistics with NumPy's."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from bert_jax.finetuning.hyperparameters import Combination, Grid, Hyperparameters
from bert_jax.finetuning.sweep_directory import claim, kept_before
from bert_jax.finetuning.sweep_report import write_report
from bert_jax.finetuning.sweep_results import (
    Provenance,
    RunResult,
    SweepResults,
    best_run,
    read_results,
    summarize,
    write_results,
)
from bert_jax.finetuning.sweep_tables import aligned, table, verdict
from bert_jax.finetuning.task_data import ExampleSet, HeadConfig, Logits, TaskData

ORIGIN = Provenance("bert-jax sweep <&>", "2026-11-21 12:00", "1 x cpu", {"jax": "0"})


def results_of(grid: Grid, **changes: object) -> SweepResults:
    """Return random results for a grid; a third of the runs score at chance level."""
    rng = np.random.default_rng(0)
    runs = []
    for number, hyperparameters in enumerate(grid.runs):
        accuracy = 0.5 if number % 3 == 0 else 0.5 + 0.4 * rng.random()
        scores = {"accuracy": float(accuracy), "loss": float(rng.random())}
        runs.append(RunResult(hyperparameters, scores, 10 + number, 1.5, number % 3 == 0))
    results = SweepResults(
        "RTE", "accuracy", False, "accuracy", 0.5, 2490, len(runs), tuple(runs), ORIGIN
    )
    return dataclasses.replace(results, **changes)


def test_the_default_grid_is_that_of_the_paper_seed_after_seed() -> None:
    runs = Grid().runs
    assert len(runs) == len({run.name for run in runs}) == 2 * 4 * 3 * 5
    assert [run.seed for run in runs] == [seed for seed in range(5) for _ in range(24)]
    paper = {(b, r, e) for b in (16, 32) for r in (5e-5, 4e-5, 3e-5, 2e-5) for e in (2, 3, 4)}
    assert {(each.batch_size, each.learning_rate, each.num_epochs) for each in runs[:24]} == paper
    assert runs[0].name == "batch16-rate5e-05-epochs2-seed0"


def test_seeds_count_up_from_the_first() -> None:
    grid = Grid((8,), (1e-3,), (1,), num_seeds=2, first_seed=7)
    assert grid.runs == [Hyperparameters(8, 1e-3, 1, 7), Hyperparameters(8, 1e-3, 1, 8)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sizes": ()}, r"batch_sizes=\[\]: expected one or more"),
        ({"learning_rates": (1e-3, -1.0)}, "learning_rates=.*above 0"),
        ({"learning_rates": (1e-3, float("nan"))}, "learning_rates=.*nan.*finite"),
        ({"learning_rates": (float("inf"),)}, "learning_rates=.*inf.*finite"),
        ({"num_epochs": (2, 3, 2)}, r"num_epochs=\[2, 3, 2\]: contains duplicates"),
        ({"num_seeds": 0}, "num_seeds=0: must be at least 1"),
        ({"first_seed": -1}, "first_seed=-1: must be between 0 and"),
    ],
)
def test_invalid_grids_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Grid(**changes)


def test_statistics_equal_those_of_numpy() -> None:
    results = results_of(Grid())
    summaries = results.summaries
    assert len(summaries) == 24
    for summary in summaries:
        runs = [
            run for run in results.runs if run.hyperparameters.combination == summary.combination
        ]
        assert summary.num_runs == len(runs) == 5
        for name, spread in summary.spreads.items():
            values = np.array([run.scores[name] for run in runs])
            np.testing.assert_allclose(spread.mean, values.mean(), rtol=1e-12)
            np.testing.assert_allclose(spread.deviation, values.std(ddof=1), rtol=1e-12)
        assert summary.best == max(run.scores["accuracy"] for run in runs)
        assert summary.degenerate == sum(run.scores["accuracy"] <= 0.5 for run in runs)
    means = [summary.spreads["accuracy"].mean for summary in summaries]
    assert means == sorted(means, reverse=True)
    assert results.num_degenerate == 40


def result(seed: int, rate: float, loss: float | None) -> RunResult:
    scores = {} if loss is None else {"loss": loss}
    hyperparameters = Hyperparameters(16, rate, 2, seed)
    return RunResult(
        hyperparameters, scores, 1, 0.0, loss is None, "" if scores else "step 3: loss is nan"
    )


def test_a_lower_loss_ranks_first_and_combinations_that_diverged_last() -> None:
    runs = [result(0, 1.0, 0.1), result(1, 1.0, None), result(0, 2.0, 0.5), result(1, 2.0, 0.3)]
    runs += [result(0, 3.0, None), result(0, 4.0, 0.3)]
    summaries = summarize(runs, "loss", lower_is_better=True)
    assert [each.combination.learning_rate for each in summaries] == [4.0, 2.0, 1.0, 3.0]
    assert [each.best for each in summaries] == [0.3, 0.3, 0.1, None]
    assert (
        [each.diverged for each in summaries]
        == [each.degenerate for each in summaries]
        == [0, 0, 1, 1]
    )
    assert summaries[0].spreads["loss"].deviation is None
    assert summaries[3].spreads == {}
    assert best_run(runs, "loss", lower_is_better=True) == runs[0]
    assert best_run(runs[4:5], "loss") is None


def test_the_best_of_equally_good_runs_does_not_depend_on_their_order() -> None:
    runs = [result(seed, rate, 0.5) for seed in range(2) for rate in (1.0, 2.0)]
    assert best_run(runs, "loss") == best_run(runs[::-1], "loss") == runs[0]


def test_results_survive_writing_and_reading(tmp_path: Path) -> None:
    results = results_of(Grid(num_seeds=1))
    write_results(results, tmp_path)
    assert read_results(tmp_path) == results
    (tmp_path / "results.json").write_text('{"runs": {}}')
    with pytest.raises(ValueError, match=r"results\.json: damaged: .*runs is .*Remove it and"):
        read_results(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(ValueError, match=r"results\.json: not valid JSON: .*Remove it and"):
        read_results(tmp_path)
    with pytest.raises(
        ValueError,
        match="contains no results.json. Specify the output directory of a `bert-jax sweep`",
    ):
        read_results(tmp_path / "elsewhere")


def cells(page: Path) -> list[list[str]]:
    """Parse a report as XML, and return the cells of its table."""
    rows = ElementTree.parse(page).iter("tr")
    return [["".join(cell.itertext()) for cell in row] for row in rows]


def test_the_report_contains_figures_and_plot_and_loads_no_other_file(
    tmp_path: Path,
) -> None:
    results = results_of(Grid(num_seeds=3), planned=80, task="A <b> & c")
    page, picture = write_report([results], tmp_path)
    head, *rows = cells(page)
    assert head[:4] == ["batch", "learning rate", "epochs", "accuracy"]
    assert len(rows) == 24
    for row in rows:
        combination = Combination(int(row[0]), float(row[1]), int(row[2]))
        runs = [run for run in results.runs if run.hyperparameters.combination == combination]
        values = np.array([run.scores["accuracy"] for run in runs])
        assert row[3] == f"{values.mean():.1%} ± {values.std(ddof=1):.1%}"
        assert row[5:] == [f"{values.max():.1%}", "3", str((values <= 0.5).sum()), "0"]
    tree = ElementTree.parse(page)
    text = "".join(tree.getroot().itertext())
    assert "8 of 80 runs have not finished" in text
    assert "degenerate runs: 24 of 72 ended no better than accuracy 50.0%" in text
    assert ORIGIN.command in text and ORIGIN.hardware in text and ORIGIN.date in text
    (image,) = tree.iter("img")
    embedded = base64.b64decode(image.get("src", "").removeprefix("data:image/png;base64,"))
    assert embedded == picture.read_bytes()
    with Image.open(io.BytesIO(embedded)) as opened:
        opened.verify()
    assert not {"link", "script", "iframe"} & {element.tag for element in tree.iter()}
    assert "url(" not in page.read_text() and "http" not in page.read_text()
    assert "prefers-color-scheme: dark" in page.read_text()


def test_several_sweeps_share_a_page_with_a_plot_for_each(tmp_path: Path) -> None:
    small = Grid((16,), (1e-3,), (2,), num_seeds=1)
    sweeps = [results_of(small), results_of(small, task="STS-B / x", metric="loss")]
    files = write_report(sweeps, tmp_path / "new")
    names = ["report.html", "report-1-RTE.png", "report-2-STS-B-x.png"]
    assert [file.name for file in files] == names
    assert len(list(ElementTree.parse(files[0]).iter("img"))) == 2


def test_a_sweep_in_which_all_runs_diverged_is_reported(tmp_path: Path) -> None:
    runs = (result(0, 1.0, None), result(0, 2.0, None))
    results = results_of(Grid(), runs=runs, metric="loss", planned=2)
    assert verdict(results) == ["all 2 runs diverged"]
    lines = aligned(table(results))
    assert lines[1].split() == ["16", "1", "2", "-", "-", "1", "1", "1"]
    assert len({len(line) for line in lines}) == 1
    write_report([results], tmp_path)


class _Set(ExampleSet):
    metrics = ("f1",)

    def __init__(self, chances: Mapping[str, float]) -> None:
        self._chances = chances

    def scores(self, logits: Logits) -> dict[str, float]:
        raise NotImplementedError

    def chance(self, metric: str) -> float:
        return self._chances[metric]

    def write(self, logits: Logits, directory: Path) -> list[Path]:
        raise NotImplementedError


def test_chance_is_computed_on_the_set_of_the_metric() -> None:
    matched, mismatched = _Set({"f1": 0.1, "accuracy": 0.4}), _Set({"f1": 0.2})
    one = TaskData(HeadConfig("span"), None, {"validation": matched}, {}, "f1")
    assert [one.chance(name) for name in ("f1", "accuracy")] == [0.1, 0.4]
    sets = {"matched": matched, "mismatched": mismatched}
    two = dataclasses.replace(one, validation=sets)
    assert [two.chance(f"{name}_f1") for name in sets] == [0.1, 0.2]


def test_keep_is_remembered(tmp_path: Path) -> None:
    assert kept_before(tmp_path) is None
    for keep in ("all", "best"):
        claim(tmp_path, {"config": {"a": 0}}, keep)
        assert kept_before(tmp_path) == keep
    with pytest.raises(ValueError, match="contains a different sweep"):
        claim(tmp_path, {"config": {"a": 1}}, "none")
    assert kept_before(tmp_path) == "best"


@pytest.mark.parametrize("stored", [{}, {"keep": "All"}, {"keep": None}])
def test_a_directory_without_a_valid_keep_is_refused(tmp_path: Path, stored) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"config": {}} | stored))
    with pytest.raises(
        ValueError, match="does not specify which runs .* Set keep to all, best or none"
    ):
        kept_before(tmp_path)


def test_a_grid_of_millions_of_runs_is_refused_before_it_is_built() -> None:
    with pytest.raises(ValueError, match="the grid has 24,000,000 runs .* at most 10,000"):
        Grid(num_seeds=1_000_000)
    with pytest.raises(
        ValueError, match=r"num_seeds=2 from first_seed=4294967295: seeds must be at most 2\^32 - 1"
    ):
        Grid(num_seeds=2, first_seed=2**32 - 1)
    assert len(Grid(num_seeds=400).runs) == 9_600
