"""Run a sweep one run at a time, reading its files once and compiling its programs once."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from bert_jax.files import NotWritten, full_disk
from bert_jax.finetuning.hyperparameters import Grid, Hyperparameters
from bert_jax.finetuning.outcome import PREDICTIONS_NAME
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.sweep_directory import (
    RUNS_NAME,
    Keep,
    claim,
    ended,
    has_model,
    remove_model,
    shared_config,
    write_diverged,
)
from bert_jax.finetuning.sweep_results import (
    RESULTS_NAME,
    Provenance,
    RunResult,
    SweepResults,
    read_results,
    write_results,
)
from bert_jax.finetuning.training import train
from bert_jax.local_paths import make_directory
from bert_jax.runs.checkpoints import default_checkpoint_step
from bert_jax.runs.runtime import hardware, versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import StopRequest
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.optimizer import make_schedule
from bert_jax.training.reports import Message, OnReport, discard, format_duration, format_metric
from bert_jax.training.sharding import parameter_shardings

OUTPUT_NAME = "output.txt"


@dataclass
class Sweep:
    """A sweep whose files have been read and whose combinations have been checked.

    Attributes:
      base: a run with the task's test sets. The grid's runs are variants of this run without the
        test sets.
      output: the sweep's directory.
      grid: the grid of hyperparameters and seeds.
      keep: the runs whose parameters stay on disk: all, the best so far, or none.
      command: the command that repeats the sweep.
      chance_metric: the metric that identifies degenerate runs.
      chance: `TaskData.chance` for that metric.
    """

    base: FinetuneRun
    output: Path
    grid: Grid
    keep: Keep
    command: str
    chance_metric: str
    chance: float
    _provenance: Provenance = field(init=False)
    _results: dict[Hyperparameters, RunResult] = field(default_factory=dict)
    _durations: list[tuple[int, float]] = field(default_factory=list)

    def run(self, stop: StopRequest, report: OnReport = discard) -> bool:
        """Train the runs that have not ended yet; return False if stopped before the end."""
        claim(self.output, identity(self.base), self.keep)
        self._read_ended_runs()
        self._announce(report)
        planned = len(self.grid.runs)
        for hyperparameters in self.grid.runs:
            if hyperparameters in self._results:
                continue
            if stop.stop_now() or not self._train(hyperparameters, stop):
                text = f"stopped after {len(self._results)} of {planned} runs"
                report(Message(f"{text}; the same command resumes"))
                return False
            result = self._read_result(hyperparameters)
            assert result is not None
            self._results[hyperparameters] = result
            self._provenance = self._current_provenance()
            self._write_results()
            report(Message(self._result_line(result)))
        return True

    def _announce(self, report: OnReport) -> None:
        """Report how many runs ended earlier, and where the rest will write their output."""
        planned = len(self.grid.runs)
        if self._results:
            report(Message(f"{len(self._results)} of {planned} runs ended before"))
        others = self._count_others()
        if others:
            text = (
                f"not in these results: {others} run{'s' * (others != 1)} that ended here with "
                "other seeds or hyperparameters (to include such runs, give all seeds and values "
                "in one command)"
            )
            report(Message(text))
        outputs = self.output / RUNS_NAME / "*" / OUTPUT_NAME
        report(Message(f"runs       {planned:,}, with a line at the end of each; {outputs}"))

    def results(self) -> SweepResults:
        """Return the results of the runs that have ended so far."""
        assert self.base.data.train is not None
        results = self._results
        return SweepResults(
            task=self.base.task.official_name or self.output.resolve().name,
            metric=self.base.best_metric,
            lower_is_better=self.base.best_metric.endswith(LOSS),
            chance_metric=self.chance_metric,
            chance=self.chance,
            num_examples=len(self.base.data.train),
            planned=len(self.grid.runs),
            runs=tuple(results[each] for each in self.grid.runs if each in results),
            provenance=self._provenance,
        )

    def directory(self, hyperparameters: Hyperparameters) -> Path:
        """Return a run's work directory."""
        return self.output / RUNS_NAME / hyperparameters.name

    @property
    def best_directory(self) -> Path | None:
        """The best run's directory so far; None until a run has ended without diverging."""
        best = self.results().best_run
        return None if best is None else self.directory(best.hyperparameters)

    def predict(self, stop: StopRequest) -> list[Path]:
        """Write the best run's predictions for the test sets, and return the files.

        The list is empty if the best run's parameters were not kept.

        Raises:
          StopRequested: `stop` was requested before all sets were predicted.
        """
        directory = self.best_directory
        if directory is None or not has_model(directory):
            return []
        definition = self.base.compiled.task.definition
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.base.mesh)
        step = default_checkpoint_step(directory)
        params = load_parameters(directory / CHECKPOINTS_NAME, definition, shardings, step)
        files = []
        for name, examples in self.base.data.test.items():
            logits, _ = self.base.scorer.answers(params, examples, name, stop.raise_if_stopping)
            files += examples.write(logits, directory / PREDICTIONS_NAME, name)
        return files

    def _read_ended_runs(self) -> None:
        """Read the results of runs that ended in an earlier call, and their provenance."""
        self._provenance = self._current_provenance()
        if (self.output / RESULTS_NAME).is_file():
            earlier = read_results(self.output).provenance
            self._provenance = dataclasses.replace(earlier, command=self.command)
        for hyperparameters in self.grid.runs:
            result = self._read_result(hyperparameters)
            if result is not None:
                self._results[hyperparameters] = result
        if self._results:
            self._write_results()

    def _count_others(self) -> int:
        """Return the number of runs that ended in this directory but are not in the grid."""
        names = {hyperparameters.name for hyperparameters in self.grid.runs}
        directories = (self.output / RUNS_NAME).glob("*")
        return sum(each.name not in names and ended(each) is not None for each in directories)

    def _current_provenance(self) -> Provenance:
        date = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}"
        return Provenance(self.command, date, hardware(self.base.mesh), versions())

    def _write_results(self) -> None:
        """Write the results, then remove the parameters that should not be kept."""
        results = self.results()
        write_results(results, self.output)
        best = results.best_run
        match self.keep:
            case "all":
                return
            case "best":
                kept = {best.hyperparameters} if best else set()
            case "none":
                kept = set()
            case _:
                assert_never(self.keep)
        for hyperparameters in self._results:
            if hyperparameters not in kept:
                remove_model(self.directory(hyperparameters))

    def _train(self, hyperparameters: Hyperparameters, stop: StopRequest) -> bool:
        """Train a run; return False if stopped before its end."""
        directory = self.directory(hyperparameters)
        make_directory(directory)
        resumed, start = has_model(directory), time.monotonic()
        run = self.base.with_hyperparameters(directory, hyperparameters)
        run = dataclasses.replace(run, data=dataclasses.replace(self.base.data, test={}))
        with reports_to(directory / OUTPUT_NAME) as on_report:
            try:
                if not train(run, stop, on_report=on_report):
                    return False
            except TrainingDiverged as error:
                write_diverged(directory, str(error))
        if not resumed:  # the time measured for a resumed run covers only part of it
            self._durations.append((hyperparameters.num_epochs, time.monotonic() - start))
        return True

    def _read_result(self, hyperparameters: Hyperparameters) -> RunResult | None:
        """Return the result of a run, or None if it has not ended."""
        end = ended(self.directory(hyperparameters))
        if end is None:
            return None
        degenerate = not end.scores or end.last_scores[self.chance_metric] <= self.chance
        return RunResult(
            hyperparameters, end.scores, end.step, end.seconds, degenerate, end.diverged
        )

    def _result_line(self, result: RunResult) -> str:
        metric, best = self.base.best_metric, self.results().best_run
        total = str(len(self.grid.runs))
        parts = [f"run {len(self._results):>{len(total)}}/{total}", str(result.hyperparameters)]
        if result.diverged:
            parts.append(f"diverged ({result.diverged.split(',')[0]})")
        else:
            score = format_metric(metric, result.scores[metric])
            parts.append(f"{metric} {score}{' (degenerate)' * result.degenerate}")
        if best:
            parts.append(f"best {format_metric(metric, best.scores[metric])}")
        left = self._seconds_left()
        return "  ".join([*parts, f"ETA {'-' if left is None else format_duration(left)}"])

    def _seconds_left(self) -> float | None:
        """Estimate the remaining seconds from the duration of an epoch.

        An epoch takes about the same time in every run except the first, which compiles the
        programs.
        """
        durations = self._durations[1:] or self._durations
        finished = sum(epochs for epochs, _ in durations)
        left = sum(each.num_epochs for each in self.grid.runs if each not in self._results)
        return sum(seconds for _, seconds in durations) / finished * left if finished else None


def open_sweep(base: FinetuneRun, output: Path, grid: Grid, keep: Keep, command: str) -> Sweep:
    """Check every combination, so that no run is rejected later, and return the sweep.

    Args:
      base: a run with the grid's first combination.
      output: the sweep's directory.
      grid: the grid of hyperparameters and seeds.
      keep: the runs whose parameters stay on disk.
      command: the command that repeats the sweep.

    Raises:
      ValueError: a batch cannot be split over the devices, a run does not fit in memory, or the
        warm-up is longer than a run.
    """
    base = dataclasses.replace(base, source=base.source.hold())
    for hyperparameters in grid.runs:
        run = base.with_hyperparameters(output, hyperparameters)
        make_schedule(run.optimizer, run.total_steps)
        run.check_memory()
    # A loss has no chance level, so the task's own metric identifies degenerate runs.
    scored_by = base.data.best_metric if base.best_metric.endswith(LOSS) else base.best_metric
    return Sweep(base, output, grid, keep, command, scored_by, base.data.chance(scored_by))


@contextmanager
def reports_to(file: Path) -> Iterator[OnReport]:
    """Yield a function that appends reports to `file`.

    Raises:
      NotWritten: the disk is full. Unlike the original error, this one names the file.
    """
    try:
        with file.open("a", encoding="utf-8") as log:
            yield lambda report: print(report, file=log, flush=True)
    except OSError as error:
        if isinstance(error, NotWritten) or error.filename or not full_disk(error):
            raise
        raise NotWritten(file, full_disk(error)) from error


def identity(run: FinetuneRun) -> dict[str, Any]:
    """Return all values, except hyperparameters, that determine the scores of a sweep's runs."""
    assert run.data.train is not None
    sets = {name: each.fingerprint for name, each in run.data.validation.items()}
    return {
        "config": shared_config(run.resolved.values),
        "parameters of init_from": run.source.checksum,
        "dtype": run.compute.dtype,
        "tokenizer": run.tokenizer.fingerprint,
        "examples": {"train": run.data.train.fingerprint, **sets},
    }
