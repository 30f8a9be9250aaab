"""Test whole sweeps, from config to report: stopping, resuming, errors and output files."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from bert_jax.cli import sweep
from bert_jax.cli.main import main
from bert_jax.finetuning import sweep as library
from bert_jax.finetuning.sweep_checks import make_sweep
from bert_jax.finetuning.sweep_run import Sweep
from bert_jax.training.reporting import Reporter

pytestmark = pytest.mark.slow

GRID = ["--batch-sizes", "8", "16", "--learning-rates", "1e-2", "--epochs", "1", "--seeds", "2"]
ONE = ["--batch-sizes", "16", "--epochs", "1", "--seeds", "1", "--learning-rates"]


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the user's compilation cache unchanged."""
    monkeypatch.setattr(sweep, "enable_compilation_cache", lambda: None)


def words(toy, output: Path, *more: object) -> list[str]:
    given = ["--config", toy.root / "glue.py", "--init", toy.source, "--output", output, *more]
    return ["sweep", *map(str, given)]


def ended(output: Path) -> list[dict]:
    """Return the runs from results.json, without their durations."""
    runs = json.loads((output / "results.json").read_text())["runs"]
    return [{name: x for name, x in run.items() if name != "seconds"} for run in runs]


def labels(toy, split: str) -> list[str]:
    lines = (toy.root / "reviews" / f"{split}.tsv").read_text().splitlines()[1:]
    return [line.split("\t")[1] for line in lines]


def chance(toy) -> float:
    """Return the fraction of validation examples with the most frequent label."""
    values = labels(toy, "dev")
    return max(map(values.count, "01")) / len(values)


def with_parameters(output: Path) -> list[str]:
    return sorted(path.parent.name for path in output.glob("runs/*/checkpoints"))


@pytest.fixture(scope="module")
def undisturbed(toy, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sweep]:
    """Return (output, sweep): the output directory of a finished four-run sweep, and the sweep."""
    output, opened = tmp_path_factory.mktemp("sweeps") / "undisturbed", []

    def watched(*args: object) -> Sweep:
        opened.append(make_sweep(*args))  # type: ignore[arg-type]
        return opened[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "enable_compilation_cache", lambda: None)
        patch.setattr(library, "make_sweep", watched)
        assert main(words(toy, output, *GRID)) == 0
    return output, opened[0]


def test_all_runs_have_results_and_the_best_one_has_a_model(
    undisturbed, toy, bert_jax_here
) -> None:
    output, _ = undisturbed
    runs = ended(output)
    assert [(run["dials"]["seed"], run["dials"]["batch_size"]) for run in runs] == [
        (0, 8), (0, 16), (1, 8), (1, 16),
    ]  # fmt: skip
    for run in runs:
        assert run["degenerate"] == (run["scores"]["accuracy"] <= chance(toy))
    best = max(runs, key=lambda run: run["scores"]["accuracy"])
    (kept,) = with_parameters(output)
    directory = output / "runs" / kept
    scores = json.loads((directory / "scores.json").read_text())
    assert scores["scores"] == pytest.approx(best["scores"])
    assert len((directory / "predictions" / "SST-2.tsv").read_text().splitlines()) > 1
    finished = bert_jax_here("evaluate", directory)
    assert finished.code == 0, finished.errors
    assert f"{best['scores']['accuracy']:.1%}" in finished.output
    assert (output / "report.html").is_file() and (output / "report.png").is_file()


def test_a_run_that_ends_at_chance_is_degenerate_whatever_its_best(
    undisturbed, toy, bert_jax_here, tmp_path: Path
) -> None:
    """Check the definition of degenerate runs from Mosbach et al. 2021."""
    output = tmp_path / "sweep"
    shutil.copytree(undisturbed[0], output)
    before = ended(output)
    place = next(place for place, run in enumerate(before) if not run["degenerate"])
    dials = before[place]["dials"]
    name = f"batch{dials['batch_size']}-rate0.01-epochs1-seed{dials['seed']}"
    log = output / "runs" / name / "metrics.jsonl"
    last = next(
        json.loads(line)
        for line in reversed(log.read_text().splitlines())
        if json.loads(line)["kind"] == "evaluation"
    )
    last |= {"step": last["step"] + 1, "accuracy": chance(toy)}
    log.write_text(log.read_text() + json.dumps(last) + "\n")
    assert bert_jax_here(*words(toy, output, *GRID)).code == 0
    before[place]["degenerate"] = True
    assert ended(output) == before

    log.unlink()
    refused = bert_jax_here(*words(toy, output, *GRID))
    assert refused.code == 2 and "metrics.jsonl, which has its scores, is missing" in refused.errors


def test_what_it_is_compared_with_is_the_majority(undisturbed, toy) -> None:
    results = json.loads((undisturbed[0] / "results.json").read_text())
    assert results["chance"] == pytest.approx(chance(toy))
    assert results["num_examples"] == len(labels(toy, "train"))


def test_programs_are_compiled_once_for_all_runs(undisturbed) -> None:
    compiled, lengths = undisturbed[1].base.compiled, undisturbed[1].base.row_lengths
    # Each length has one program for each of the two batch sizes.
    assert compiled.train_step._cache_size() <= 2 * len(lengths)
    # This includes the programs for the test set, which has no targets.
    assert compiled.prediction_step._cache_size() <= len(lengths)


def test_a_finished_sweep_trains_nothing_more(undisturbed, toy, bert_jax_here, monkeypatch) -> None:
    output, _ = undisturbed
    before = (output / "results.json").read_text()
    monkeypatch.setattr(Reporter, "train", None)
    finished = bert_jax_here(*words(toy, output, *GRID))
    assert finished.code == 0, finished.errors
    assert "4 of 4 runs ended earlier" in finished.output
    assert "run 4/4" not in finished.output
    assert (output / "results.json").read_text() == before


def test_a_sweep_goes_on_where_model_and_files_have_moved(
    undisturbed, toy, bert_jax_here, monkeypatch, tmp_path: Path
) -> None:
    for name, there in (
        ("sweep", undisturbed[0]),
        ("model", toy.source),
        ("data", toy.root / "reviews"),
        ("others", toy.root / "flipped"),
    ):
        shutil.copytree(there, tmp_path / name)
    toy = replace(toy, source=tmp_path / "model")
    moved = words(toy, tmp_path / "sweep", *GRID)
    other = bert_jax_here(*moved, f"--config.glue.directory={tmp_path / 'others'}")
    assert other.code == 2 and "examples.train: " in other.errors, other.errors
    assert "config.glue.directory: " in other.errors
    monkeypatch.setattr(Reporter, "train", None)
    finished = bert_jax_here(*moved, f"--config.glue.directory={tmp_path / 'data'}")
    assert finished.code == 0, finished.errors
    assert "4 of 4 runs ended earlier" in finished.output
    stored = json.loads((tmp_path / "sweep/sweep.json").read_text())
    assert stored["config"]["glue"]["directory"] == str(tmp_path / "data")


def test_a_stopped_sweep_goes_on_to_the_same_results(
    undisturbed, toy, bert_jax_here, tmp_path: Path
) -> None:
    report = Reporter.train
    reporters: list[Reporter] = []  # There is one reporter for each run.

    def stopping(self: Reporter, step: int, *args: object, **values: object) -> None:
        if self not in reporters:
            reporters.append(self)
        if step == 2 and len(reporters) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        report(self, step, *args, **values)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reporter, "train", stopping)
        finished = bert_jax_here(*words(toy, tmp_path, *GRID))
    assert finished.code == 143, finished.errors
    assert "stopped after 1 of 4 runs; run the same command to resume" in finished.output
    assert f"report so far: {tmp_path / 'report.html'}" in finished.output
    assert "3 of 4 runs have not finished." in (tmp_path / "report.html").read_text()
    second = tmp_path / "runs" / "batch16-rate0.01-epochs1-seed0"
    assert (second / "checkpoints").is_dir() and not (second / "scores.json").exists()
    finished = bert_jax_here(*words(toy, tmp_path, *GRID))
    assert finished.code == 0, finished.errors
    assert "1 of 4 runs ended earlier" in finished.output
    assert "this run's checkpoint at step" in (second / "output.txt").read_text()
    assert ended(tmp_path) == ended(undisturbed[0])
    assert with_parameters(tmp_path) == with_parameters(undisturbed[0])


def test_all_runs_of_a_sweep_start_from_the_same_parameters(
    toy, source, bert_jax_here, tmp_path: Path
) -> None:
    """Start from a pretraining run that is still in progress and deletes its old checkpoints."""
    init = tmp_path / "init"
    shutil.copytree(source, init)
    tell = Reporter.train

    def going_on(self: Reporter, *args: object, **values: object) -> None:
        shutil.rmtree(init / "checkpoints", ignore_errors=True)
        tell(self, *args, **values)  # type: ignore[arg-type]

    arguments = words(replace(toy, source=init), tmp_path / "sweep", *ONE, "1e-2")
    arguments[arguments.index("--seeds") + 1] = "2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reporter, "train", going_on)
        finished = bert_jax_here(*arguments)
    assert finished.code == 0, finished.errors
    assert len(ended(tmp_path / "sweep")) == 2


def test_a_killed_sweep_resumes_to_the_same_results(
    undisturbed, toy, bert_jax, bert_jax_here, tmp_path: Path
) -> None:
    process = bert_jax.start(*words(toy, tmp_path, *GRID), devices=8, killed=True)
    bert_jax.wait_for(process, (tmp_path / "results.json").exists)
    process.kill()
    bert_jax.finish(process)
    assert 0 < len(ended(tmp_path)) < 4
    finished = bert_jax_here(*words(toy, tmp_path, *GRID))
    assert finished.code == 0, finished.errors
    assert ended(tmp_path) == ended(undisturbed[0])
    assert with_parameters(tmp_path) == with_parameters(undisturbed[0])


def test_a_larger_grid_keeps_finished_runs_and_another_sweep_is_refused(
    toy, bert_jax_here, tmp_path: Path, make_source
) -> None:
    model, another = tmp_path / "model", make_source(seed=8)
    shutil.copytree(toy.source, model)
    toy = replace(toy, source=model)
    assert bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "--keep", "none")).code == 0
    assert with_parameters(tmp_path) == []
    finished = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "1e30", "--keep", "all"))
    assert finished.code == 0, finished.errors
    assert "1 of 2 runs ended earlier" in finished.output
    assert "diverged (step" in finished.output
    assert "(its parameters were not kept)" in finished.output
    done, diverged = ended(tmp_path)
    assert done["scores"] and not done["diverged"]
    assert diverged["degenerate"] and not diverged["scores"]
    assert "so training has diverged" in diverged["diverged"]

    smaller = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "--keep", "all"))
    assert smaller.code == 0 and len(ended(tmp_path)) == 1
    assert (
        "not in these results: 1 run that ended here with other seeds or hyperparameters"
        in smaller.output
    )

    # Imitate a file from a version that did not yet have this key.
    stored = json.loads((tmp_path / "sweep.json").read_text())
    del stored["config"]["patience"]
    (tmp_path / "sweep.json").write_text(json.dumps(stored))
    again = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "1e30", "--keep", "all"))
    assert again.code == 0, again.errors
    refused = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "--config.patience=1"))
    assert refused.code == 2 and "config.patience: 0 -> 1" in refused.errors
    refused = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2", "--config.max_length=12"))
    assert refused.code == 2
    assert (
        "contains a different sweep (that sweep -> this command):\n  config.max_length: 24 -> 12"
        in refused.errors
    )
    refused = bert_jax_here(*words(replace(toy, source=another), tmp_path, *ONE, "1e-2"))
    assert refused.code == 2
    assert "config.init_from: " in refused.errors
    shutil.rmtree(model)
    shutil.copytree(another, model)
    refused = bert_jax_here(*words(toy, tmp_path, *ONE, "1e-2"))
    assert refused.code == 2
    assert "(that sweep -> this command):\n  parameters of init_from: " in refused.errors
    assert len(ended(tmp_path)) == 2


def test_keep_all_stays_in_effect_without_the_option(toy, bert_jax_here, tmp_path: Path) -> None:
    two = [*ONE, "1e-2", "2e-2"]
    assert bert_jax_here(*words(toy, tmp_path, *two, "--keep", "all")).code == 0
    assert len(with_parameters(tmp_path)) == 2
    again = bert_jax_here(*words(toy, tmp_path, *two, "5e-3"))
    assert again.code == 0, again.errors
    assert len(with_parameters(tmp_path)) == 3
    command = json.loads((tmp_path / "results.json").read_text())["provenance"]["command"]
    assert command.endswith(" --keep all")
    refused = bert_jax_here("evaluate", tmp_path)
    assert f"it is a sweep directory; 3 models are in {tmp_path / 'runs'})" in refused.errors


def test_a_sweep_that_is_stopped_while_predicting_resumes_predicting(
    undisturbed, toy, bert_jax_here, stopped_while_predicting, tmp_path: Path
) -> None:
    output = tmp_path / "sweep"
    shutil.copytree(undisturbed[0], output)
    (predictions,) = output.glob("runs/*/predictions/SST-2.tsv")
    expected = predictions.read_text()
    predictions.unlink()
    stopped = stopped_while_predicting(*words(toy, output, *GRID))
    assert stopped.code == 143, stopped.errors
    assert (
        "stopped after the last run; run the same command to write the predictions"
        in stopped.output
    )
    assert not predictions.exists()
    finished = bert_jax_here(*words(toy, output, *GRID))
    assert finished.code == 0, finished.errors
    assert predictions.read_text() == expected


def test_reports_are_written_again_from_the_results(
    undisturbed, bert_jax_here, tmp_path: Path
) -> None:
    output, _ = undisturbed
    page = (output / "report.html").read_text()
    (output / "report.html").unlink()
    assert bert_jax_here("sweep", "--report-only", output).code == 0
    assert (output / "report.html").read_text() == page
    both = ("sweep", "--report-only", output, output)
    assert "--output is missing: a report on multiple sweeps" in bert_jax_here(*both).errors
    assert bert_jax_here(*both, "--output", tmp_path).code == 0
    assert (tmp_path / "report.html").read_text().count("<img") == 2


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--config.batch_size=8"], "a sweep sets this key itself. Use --batch-sizes"),
        (["--config.work_dir=x"], "a sweep sets this key itself. Use --output"),
        (["--batch-sizes", "8", "12"], "batch_size=12 is not divisible by 8"),
        (["--seeds", "0"], "error: --seeds=0: must be at least 1"),
        (["--epochs", "0"], "error: --epochs=[0]: expected one or more"),
        (["--report-only", "x"], "--config: --report-only does not train. Omit the option"),
        (
            ["--config.optimizer.warmup_fraction=0", "--config.optimizer.warmup_steps=900"],
            "optimizer.warmup_steps=900 is more than the",
        ),
    ],
)
def test_impossible_runs_are_refused_before_the_first_run(
    toy, bert_jax_here, tmp_path: Path, more: list[str], message: str
) -> None:
    finished = bert_jax_here(*words(toy, tmp_path, *more))
    assert finished.code == 2
    assert message in finished.errors
    assert not list(tmp_path.iterdir())


def test_several_processes_are_refused(toy, bert_jax_here, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "8")
    finished = bert_jax_here(*words(toy, tmp_path))
    assert finished.code == 2
    assert (
        "a sweep must be a single process that uses all devices, but this is one of 8 processes"
        in finished.errors
    )


def test_config_and_output_are_required(bert_jax_here) -> None:
    assert "--config is missing" in bert_jax_here("sweep", "--output", "x").errors
