"""Sweep a grid of hyperparameters and seeds, report the scores, and predict with the best run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.sweep_checks import check_runs, make_sweep, naming
from bert_jax.finetuning.sweep_configs import variants_of
from bert_jax.finetuning.sweep_directory import Keep, has_model, kept_before
from bert_jax.finetuning.sweep_place import SweepPlace, open_sweep
from bert_jax.finetuning.sweep_report import write_report
from bert_jax.finetuning.sweep_results import SweepResults
from bert_jax.finetuning.sweep_run import OnProgress, Sweep
from bert_jax.finetuning.sweep_tables import summary
from bert_jax.finetuning.variants import Variant
from bert_jax.local_paths import naming_urls
from bert_jax.runs.ownership import only_writer
from bert_jax.runs.runtime import Compilations
from bert_jax.storage.urls import Location
from bert_jax.tracking.background import check_trackers
from bert_jax.training.distributed import StopRequest, StopRequested, launched_together
from bert_jax.training.reports import Message, OnReport, discard
from bert_jax.training.sharding import make_mesh
from bert_jax.validation import check_choice, check_config


@dataclass(frozen=True)
class SweepResult:
    """The result of a sweep.

    Attributes:
      finished: whether the sweep has ended. If False, it was stopped, and the same call resumes it.
      output: the directory of the sweep, or its URL.
      results: the results of the runs so far.
      best_directory: the work directory of the best run, which contains its parameters unless
        `keep` was "none".
      predictions: the files with the best run's predictions for the test sets.
      report: the files of the report.
    """

    finished: bool
    output: Location
    results: SweepResults
    best_directory: Location | None
    predictions: Sequence[Location]
    report: Sequence[Location]


_GRID = Grid()


@naming_urls()
def sweep(
    config: FinetuneConfig,
    output: str | os.PathLike[str],
    *,
    batch_sizes: Sequence[int] = _GRID.batch_sizes,
    learning_rates: Sequence[float] = _GRID.learning_rates,
    num_epochs: Sequence[int] = _GRID.num_epochs,
    num_seeds: int = _GRID.num_seeds,
    vary: Mapping[str, Sequence[object]] | None = None,
    keep: Keep | None = None,
    command: str | None = None,
    on_report: OnReport | None = None,
    on_progress: OnProgress | None = None,
    stop: StopRequest | None = None,
) -> SweepResult:
    """Fine-tune with every combination of hyperparameters and every seed, and write a report.

    If the sweep was stopped, it is resumed. The config's `work_dir`, `batch_size`, `num_epochs` and
    peak learning rate are replaced. The seeds are consecutive, starting at the config's `seed`.

    Args:
      config: the config of the runs.
      output: the directory for the runs, `results.json` and the report, or its URL in a bucket.
      batch_sizes: the batch sizes of the grid.
      learning_rates: the peak learning rates of the grid.
      num_epochs: the epoch counts of the grid.
      num_seeds: the number of seeds per combination.
      vary: the values of other config keys to try, keyed by dotted key, such as
        `{"tuning.top_layers": [-1, 2, 0]}`. All combinations of these values and the
        hyperparameters are run. The values replace the ones in `config`.
      keep: which runs keep their checkpoints on disk; None means the setting that the sweep in
        `output` used before, or "best" for a new sweep.
      command: the command that repeats the sweep, for the report; defaults to a call to this
        function.
      on_report: called with a message after every run. A run's own reports go to `output.txt` in
        its directory.
      on_progress: called during a run with a line that reports the current run and its step.
      stop: a request to stop; any thread may call its `request()`, which ends the sweep the way
        Ctrl-C does.

    Returns:
      A `SweepResult` with the runs, the best run's directory and the files of the report.

    Raises:
      ValueError: a key in `vary` is unknown or is set by the sweep itself, a combination cannot be
        run, `output` contains another sweep, or multiple processes were started.
      StorageError: the bucket of `output` cannot be read or written.
    """
    check_config(config, FinetuneConfig)
    check_trackers(config.trackers, "trackers")
    check_choice("keep", keep, (None, *get_args(Keep)))
    if (processes := launched_together()) > 1:
        raise ValueError(
            f"a sweep must be a single process that uses all devices, but this is one of "
            f"{processes} processes. Start a single process (under Slurm with srun --ntasks=1)."
        )
    configs = variants_of(config, vary or {})
    grid = Grid(
        tuple(batch_sizes),
        tuple(learning_rates),
        tuple(num_epochs),
        num_seeds,
        config.seed,
        tuple(configs),
    )
    report, progress = on_report or discard, on_progress or (lambda text: None)
    with open_sweep(output) as place:
        result, lines = _sweep(configs, grid, place, keep, command, progress, report, stop)
        place.root.finished = result.finished
    for line in lines:
        report(Message(line))
    return result


def _sweep(
    configs: Mapping[Variant, FinetuneConfig],
    grid: Grid,
    place: SweepPlace,
    keep: Keep | None,
    command: str | None,
    progress: OnProgress,
    report: OnReport,
    stop: StopRequest | None,
) -> tuple[SweepResult, list[str]]:
    """Run a sweep in an open directory, and return the result and the lines to print."""
    location = place.root.location
    keep = keep or kept_before(place.path) or "best"
    command = command or _call(location, grid, keep)
    opened: dict[Variant, FinetuneRun] = {}
    for variant, varied in configs.items():
        # All runs evaluate the same number of rows at once, so evaluation is compiled only once.
        rows = 4 * (max(grid.batch_sizes) // varied.accumulation_steps)
        varied = replace(
            varied,
            work_dir=str(location),
            batch_size=grid.runs[0].batch_size,
            evaluation_batch_size=varied.evaluation_batch_size or rows,
        )
        with naming(variant):
            mesh = make_mesh(varied.mesh)
            run = FinetuneRun.open(varied, mesh, list(opened.values()), place=place.root)
            opened[variant] = check_runs(run, grid.runs_by_variant[variant])
    runs = make_sweep(opened, place, grid, keep, command, progress)
    # `StopRequest` exits last, so that a signal cannot kill the process in the middle of a save.
    with Compilations() as compiled, stop or StopRequest() as stopping, only_writer(place.path):
        result, lines = _run_to_end(runs, stopping, report)
    if len(result.results.runs) == len(grid.runs):
        lines += [*compiled.lines(), *(f"report: {file}" for file in result.report)]
    return result, lines


def _call(output: Location, grid: Grid, keep: Keep) -> str:
    """Return the Python call that repeats the sweep."""
    vary = {
        key: list(dict.fromkeys(variant.values[key] for variant in grid.variants))
        for key in grid.variants[0].values
    }
    values: dict[str, object] = {
        "batch_sizes": list(grid.batch_sizes),
        "learning_rates": list(grid.learning_rates),
        "num_epochs": list(grid.num_epochs),
        "num_seeds": grid.num_seeds,
        **({"vary": vary} if vary else {}),
        "keep": keep,
    }
    keywords = ", ".join(f"{name}={value!r}" for name, value in values.items())
    return f"bert_jax.sweep(config, {str(output)!r}, {keywords})"


def _run_to_end(
    opened: Sweep, stop: StopRequest, report: OnReport
) -> tuple[SweepResult, list[str]]:
    """Train the runs, write a report and predictions, and return the result and lines to print."""
    finished = opened.run(stop, report)
    results, root = opened.results(), opened.place.root
    best = opened.best_directory
    best_location = None if best is None else root.shown(best)
    written = list(map(Path, write_report([results], root.path))) if results.runs else []
    opened.place.publish(*written)
    files = [root.shown(file) for file in written]
    predictions: list[Location] = []
    if finished:
        lines = ["", *summary(results)]
        try:
            predictions = [root.shown(file) for file in opened.predict(stop)]
            if best is not None:
                kept = "" if has_model(best) else " (its parameters were not kept)"
                lines += [f"directory of the best run: {best_location}{kept}"]
            lines += [f"predictions: {file}" for file in predictions]
        except StopRequested:
            finished = False
            lines += ["stopped after the last run; run the same command to write the predictions"]
    else:
        lines = [f"report so far: {file}" for file in files] or [""]
    result = SweepResult(finished, root.location, results, best_location, predictions, files)
    return result, lines
