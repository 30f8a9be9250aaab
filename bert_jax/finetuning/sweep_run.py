"""Train a sweep's runs one at a time, reading its files and compiling its programs only once."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Callable, Iterator, Mapping
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
    IDENTITY_NAME,
    VARIANTS,
    VARIED,
    Keep,
    claim,
    ended,
    has_model,
    shared_config,
    write_diverged,
)
from bert_jax.finetuning.sweep_durations import Durations
from bert_jax.finetuning.sweep_place import SweepPlace
from bert_jax.finetuning.sweep_results import (
    RESULTS_NAME,
    Provenance,
    RunResult,
    SweepResults,
    VariantFacts,
    read_results,
    write_results,
)
from bert_jax.finetuning.training import train
from bert_jax.finetuning.variants import Variant
from bert_jax.runs.bucket_layout import RUNS_NAME
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.runtime import hardware, versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import StopRequest
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.reports import (
    Message,
    OnReport,
    Report,
    TrainReport,
    discard,
    format_duration,
    format_metric,
)
from bert_jax.training.sharding import parameter_shardings

OUTPUT_NAME = "output.txt"
OnProgress = Callable[[str], None]


@dataclass
class Sweep:
    """An open sweep: its files have been read, and its combinations have been checked.

    Attributes:
      opened: an open run for each variant, with the task's test sets. The variant's runs in the
        grid share its data and programs. They have their own hyperparameters, but no test sets.
      facts: the properties that each variant's runs share.
      place: the sweep's directory.
      grid: the grid of variants, hyperparameters and seeds.
      keep: the runs whose parameters stay on disk: all, the best so far, or none.
      command: the command that repeats the sweep.
      metric: the metric that runs are compared by.
      chance_metric: the metric that identifies degenerate runs.
      on_progress: called during a run with a line that describes its progress.
    """

    opened: Mapping[Variant, FinetuneRun]
    facts: Mapping[Variant, VariantFacts]
    place: SweepPlace
    grid: Grid
    keep: Keep
    command: str
    metric: str
    chance_metric: str
    on_progress: OnProgress = lambda text: None
    _provenance: Provenance = field(init=False)
    _results: dict[Hyperparameters, RunResult] = field(default_factory=dict)
    _durations: Durations = field(default_factory=Durations)

    @property
    def output(self) -> Path:
        """The local directory in which the sweep works."""
        return self.place.path

    @property
    def base(self) -> FinetuneRun:
        """The run of the first variant."""
        return self.opened[self.grid.variants[0]]

    def run(self, stop: StopRequest, report: OnReport = discard) -> bool:
        """Train the runs that have not ended yet; return False if a stop was requested."""
        claim(self.output, self._identity(), self.keep)
        self.place.publish(self.output / IDENTITY_NAME)
        self._read_ended_runs()
        self._announce(report)
        planned = len(self.grid.runs)
        for hyperparameters in self.grid.runs:
            if hyperparameters in self._results:
                continue
            if stop.stop_now() or not self._train(hyperparameters, stop):
                text = f"stopped after {len(self._results)} of {planned} runs"
                report(Message(f"{text}; run the same command to resume"))
                return False
            result = self._read_result(hyperparameters)
            assert result is not None
            self._results[hyperparameters] = result
            self._provenance = self._current_provenance()
            self._write_results()
            report(Message(self._result_line(result)))
        return True

    def _announce(self, report: OnReport) -> None:
        """Report how many runs ended earlier, and where the other runs will write their output."""
        planned = len(self.grid.runs)
        if self._results:
            report(Message(f"{len(self._results)} of {planned} runs ended earlier"))
        others = self._count_others()
        if others:
            text = (
                f"not in these results: {others} run{'s' * (others != 1)} that ended here with "
                "other seeds or hyperparameters (to include such runs, specify all seeds and "
                "values in one command)"
            )
            report(Message(text))
        outputs = self.place.root.location / RUNS_NAME / "*" / OUTPUT_NAME
        report(Message(f"runs       {planned:,}, with a line at the end of each; {outputs}"))

    def results(self) -> SweepResults:
        """Return the results of the runs that have ended so far."""
        results, first = self._results, self.facts[self.grid.variants[0]]
        names = dict.fromkeys(run.task.official_name for run in self.opened.values())
        return SweepResults(
            task=", ".join(filter(None, names)) or self.output.resolve().name,
            metric=self.metric,
            lower_is_better=self.metric.endswith(LOSS),
            chance_metric=self.chance_metric,
            chance=first.chance,
            num_examples=first.num_examples,
            planned=len(self.grid.runs),
            runs=tuple(results[each] for each in self.grid.runs if each in results),
            provenance=self._provenance,
            variants=tuple(each for each in self.facts.values() if each.variant),
        )

    def directory(self, hyperparameters: Hyperparameters) -> Path:
        """Return the local directory in which a run works."""
        return self.output / RUNS_NAME / hyperparameters.name

    @property
    def best_directory(self) -> Path | None:
        """The local directory of the best run so far; None until one has ended."""
        best = self.results().best_run
        return None if best is None else self.directory(best.hyperparameters)

    def predict(self, stop: StopRequest) -> list[Path]:
        """Write the best run's predictions for the test sets, and return the files.

        The list is empty if the best run's parameters were not kept.

        Raises:
          StopRequested: `stop` was requested before all sets were predicted.
        """
        best = self.results().best_run
        if best is None or not has_model(directory := self.directory(best.hyperparameters)):
            return []
        run = self.opened[best.hyperparameters.variant]
        definition = run.compiled.task.definition
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, run.mesh)
        step = default_checkpoint_step(directory)
        params = load_parameters(directory / CHECKPOINTS_NAME, definition, shardings, step)
        files = []
        for name, examples in run.data.test.items():
            logits, _ = run.scorer.answers(params, examples, name, stop.raise_if_stopping)
            files += examples.write(logits, directory / PREDICTIONS_NAME, name)
        self.place.publish(*files)
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
        self.place.publish(self.output / RESULTS_NAME)
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
                self.place.remove_model(hyperparameters.name)

    def _train(self, hyperparameters: Hyperparameters, stop: StopRequest) -> bool:
        """Train a run; return False if it was stopped early."""
        with self.place.open_run(hyperparameters.name) as place:
            return self._train_in(place, hyperparameters, stop)

    def _train_in(
        self, place: WorkDir, hyperparameters: Hyperparameters, stop: StopRequest
    ) -> bool:
        directory = place.path
        resumed, start = has_model(directory), time.monotonic()
        run = self.opened[hyperparameters.variant].with_hyperparameters(place, hyperparameters)
        run = dataclasses.replace(run, data=dataclasses.replace(run.data, test={}))
        self.on_progress(self._progress(hyperparameters))
        with reports_to(directory / OUTPUT_NAME) as log:

            def on_report(report: Report) -> None:
                log(report)
                if isinstance(report, TrainReport):
                    self.on_progress(self._progress(hyperparameters, report))

            try:
                if not train(run, stop, on_report=place.reporting(on_report)):
                    return False
            except TrainingDiverged as error:
                write_diverged(directory, str(error))
                return True
        # The time measured for a resumed run covers only part of the run.
        if not resumed:
            seconds, end = time.monotonic() - start, ended(directory)
            assert end is not None
            # The fraction is below 1 after early stopping.
            fraction = end.trained_steps / run.total_steps
            self._durations.add(hyperparameters, seconds, fraction=fraction)
        return True

    def _read_result(self, hyperparameters: Hyperparameters) -> RunResult | None:
        """Return the result of a run, or None if it has not ended."""
        end = ended(self.directory(hyperparameters))
        if end is None:
            return None
        chance = self.facts[hyperparameters.variant].chance
        degenerate = not end.scores or end.last_scores[self.chance_metric] <= chance
        return RunResult(
            hyperparameters,
            end.scores,
            end.step,
            end.seconds,
            degenerate,
            end.diverged,
            end.trained_steps,
        )

    def _result_line(self, result: RunResult) -> str:
        metric, best = self.metric, self.results().best_run
        parts = [self._number(len(self._results)), str(result.hyperparameters)]
        if result.diverged:
            parts.append(f"diverged ({result.diverged.split(',')[0]})")
        else:
            score = format_metric(metric, result.scores[metric])
            parts.append(f"{metric} {score}{' (degenerate)' * result.degenerate}")
        if best:
            parts.append(f"best {format_metric(metric, best.scores[metric])}")
        seconds = self._durations.seconds_per_epoch(result.hyperparameters.variant)
        if seconds is not None:
            parts.append(f"{format_duration(seconds)} per epoch")
        return "  ".join([*parts, _eta(self._seconds_left())])

    def _progress(self, training: Hyperparameters, report: TrainReport | None = None) -> str:
        """Return a line about the run that is being trained, given its latest report."""
        parts = [self._number(len(self._results) + 1), str(training)]
        left = self._seconds_left()
        if report is None:
            return "  ".join([*parts, "starting", _eta(left)])
        parts.append(f"step {report.step:,}/{report.total_steps:,}")
        others = self._seconds_left(training)
        if report.seconds_left is not None and others is not None:
            left = report.seconds_left + others
        return "  ".join([*parts, _eta(left)])

    def _seconds_left(self, training: Hyperparameters | None = None) -> float | None:
        """Estimate how long the runs that have not ended will take, not counting `training`."""
        return self._durations.seconds_left(
            each for each in self.grid.runs if each not in self._results and each != training
        )

    def _number(self, number: int) -> str:
        total = str(len(self.grid.runs))
        return f"run {number:>{len(total)}}/{total}"

    def _identity(self) -> dict[str, Any]:
        """Return all values, except hyperparameters, that determine the scores of the runs."""
        if not self.grid.variants[0]:
            return identity(self.base)
        variants = {variant.name: identity(run) for variant, run in self.opened.items()}
        return {VARIED: list(self.grid.variants[0].values), VARIANTS: variants}


def _eta(seconds: float | None) -> str:
    return f"ETA {'-' if seconds is None else format_duration(seconds)}"


@contextmanager
def reports_to(file: Path) -> Iterator[OnReport]:
    """Yield a function that appends reports to `file`.

    Raises:
      NotWritten: the disk is full. Unlike the original error, this error contains the file's path.
    """
    try:
        with file.open("a", encoding="utf-8") as log:
            yield lambda report: print(report, file=log, flush=True)
    except OSError as error:
        if isinstance(error, NotWritten) or error.filename or not full_disk(error):
            raise
        raise NotWritten(file, full_disk(error)) from error


def identity(run: FinetuneRun) -> dict[str, Any]:
    """Return all values, except hyperparameters, that determine the scores of a variant's runs."""
    assert run.data.train is not None
    sets = {name: each.fingerprint for name, each in run.data.validation.items()}
    return {
        "config": shared_config(run.resolved.values),
        "parameters of init_from": run.source.checksum,
        "dtype": run.compute.dtype,
        "tokenizer": run.tokenizer.fingerprint,
        "examples": {"train": run.data.train.fingerprint, **sets},
    }
