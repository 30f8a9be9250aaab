"""Run a sweep: files are read once, programs are compiled once, and runs follow each other."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from bert_jax.conversion import to_plain
from bert_jax.files import NotWritten, full_disk
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
from bert_jax.finetuning.sweep_report import dials_words
from bert_jax.finetuning.sweep_results import (
    RESULTS_NAME,
    Grid,
    Provenance,
    RunDials,
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

    base: a run with the task's test sets; those of the grid are turned from it and leave them out.
    keep: whose parameters stay on disk: of every run, the best so far, or none.
    chance: `TaskData.chance` of `chance_metric`.
    """

    base: FinetuneRun
    output: Path
    grid: Grid
    keep: Keep
    command: str
    chance_metric: str
    chance: float
    _provenance: Provenance = field(init=False)
    _runs: dict[RunDials, RunResult] = field(default_factory=dict)
    _spent: list[tuple[int, float]] = field(default_factory=list)

    def run(self, stop: StopRequest, report: OnReport = discard) -> bool:
        """Train the runs that have not ended yet; return False if stopped before the end."""
        claim(self.output, identity(self.base), self.keep)
        self._collect()
        self._announce(report)
        for dials in self.grid.runs:
            if dials in self._runs:
                continue
            if stop.stop_now() or not self._train(dials, stop):
                at, planned = len(self._runs), len(self.grid.runs)
                text = f"stopped after {at} of {planned} runs; the same command resumes"
                report(Message(text))
                return False
            result = self._result(dials)
            assert result is not None
            self._runs[dials] = result
            self._provenance = self._here_and_now()
            self._settle()
            report(Message(self._line(result)))
        return True

    def _announce(self, report: OnReport) -> None:
        """Report the runs that ended before, and where the others will write."""
        planned = len(self.grid.runs)
        if self._runs:
            report(Message(f"{len(self._runs)} of {planned} runs ended before"))
        others = self._others()
        if others:
            text = (
                f"not in these results: {others} that ended here with other seeds or dials (give "
                "them all at once to have them in)"
            )
            report(Message(text))
        outputs = self.output / RUNS_NAME / "*" / OUTPUT_NAME
        report(Message(f"runs       {planned:,}, a line each at its end; {outputs}"))

    def results(self) -> SweepResults:
        """What has ended so far."""
        assert self.base.data.train is not None
        return SweepResults(
            task=self.base.config.task.official_name or self.output.resolve().name,
            metric=self.base.best_metric,
            lower_is_better=self.base.best_metric.endswith(LOSS),
            chance_metric=self.chance_metric,
            chance=self.chance,
            num_examples=len(self.base.data.train),
            planned=len(self.grid.runs),
            runs=tuple(self._runs[dials] for dials in self.grid.runs if dials in self._runs),
            provenance=self._provenance,
        )

    def directory(self, dials: RunDials) -> Path:
        """Of a run."""
        return self.output / RUNS_NAME / dials.name

    @property
    def best_directory(self) -> Path | None:
        """The directory of the best run so far; None if no run ended without diverging."""
        best = self.results().best_run
        return None if best is None else self.directory(best.dials)

    def predict(self, stop: StopRequest) -> list[Path]:
        """Write the best run's predictions for the test sets, and return the files.

        Without the run's parameters, which may not have been kept, there are none.

        Raises:
          StopRequested: `stop` came before they were all predicted.
        """
        directory = self.best_directory
        if directory is None or not has_model(directory):
            return []
        return self._predict(directory, stop)

    def _collect(self) -> None:
        """Takes in the runs that ended before, and when and where the last of them did."""
        self._provenance = self._here_and_now()
        if (self.output / RESULTS_NAME).is_file():
            before = read_results(self.output).provenance
            self._provenance = dataclasses.replace(before, command=self.command)
        for dials in self.grid.runs:
            result = self._result(dials)
            if result is not None:
                self._runs[dials] = result
        if self._runs:
            self._settle()

    def _others(self) -> int:
        """Runs that ended here and are none of the grid's."""
        ours = {dials.name for dials in self.grid.runs}
        found = (self.output / RUNS_NAME).glob("*")
        return sum(each.name not in ours and ended(each) is not None for each in found)

    def _here_and_now(self) -> Provenance:
        now = datetime.datetime.now(datetime.UTC)
        return Provenance(
            self.command, f"{now:%Y-%m-%d %H:%M}", hardware(self.base.mesh), versions()
        )

    def _settle(self) -> None:
        """Writes the results, and then removes the parameters that are not to be kept."""
        results = self.results()
        write_results(results, self.output)
        best = results.best_run
        match self.keep:
            case "all":
                return
            case "best":
                kept = {best.dials} if best else set()
            case "none":
                kept = set()
            case _:
                assert_never(self.keep)
        for dials in self._runs:
            if dials not in kept:
                remove_model(self.directory(dials))

    def _train(self, dials: RunDials, stop: StopRequest) -> bool:
        directory = self.directory(dials)
        make_directory(directory)
        resumed, began = has_model(directory), time.monotonic()
        data = dataclasses.replace(self.base.data, test={})
        run = dataclasses.replace(_turned(self.base, dials, directory), data=data)
        with reports_to(directory / OUTPUT_NAME) as on_report:
            try:
                if not train(run, stop, on_report=on_report):
                    return False
            except TrainingDiverged as error:
                write_diverged(directory, str(error))
        if not resumed:  # of a resumed one it is not known what it would have taken
            self._spent.append((dials.num_epochs, time.monotonic() - began))
        return True

    def _result(self, dials: RunDials) -> RunResult | None:
        found = ended(self.directory(dials))
        if found is None:
            return None
        degenerate = not found.scores or found.last_scores[self.chance_metric] <= self.chance
        return RunResult(dials, found.scores, found.step, found.seconds, degenerate, found.diverged)

    def _line(self, result: RunResult) -> str:
        metric, best = self.base.best_metric, self.results().best_run
        total = str(len(self.grid.runs))
        parts = [f"run {len(self._runs):>{len(total)}}/{total}", dials_words(result.dials)]
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
        """By epochs, which cost about the same in all runs but the first, which compiles."""
        spent = self._spent[1:] or self._spent
        done = sum(epochs for epochs, _ in spent)
        left = sum(dials.num_epochs for dials in self.grid.runs if dials not in self._runs)
        return sum(seconds for _, seconds in spent) / done * left if done else None

    def _predict(self, directory: Path, stop: StopRequest) -> list[Path]:
        definition = self.base.task.definition
        shardings = parameter_shardings(definition.shapes, definition.logical_axes, self.base.mesh)
        params = load_parameters(
            directory / CHECKPOINTS_NAME, definition, shardings, default_checkpoint_step(directory)
        )
        files = []
        for name, examples in self.base.data.test.items():
            logits, _ = self.base.scorer.answers(params, examples, name, stop.raise_if_stopping)
            files += examples.write(logits, directory / PREDICTIONS_NAME, name)
        return files


def open_sweep(base: FinetuneRun, output: Path, grid: Grid, keep: Keep, command: str) -> Sweep:
    """Check every combination, so that none is refused later.

    base: a run of the grid's first combination.

    Raises:
      ValueError: a batch cannot be split over the devices, a run does not fit into memory, or the
        warm-up is longer than a run.
    """
    base = dataclasses.replace(base, source=base.source.hold())
    for dials in grid.runs:
        run = _turned(base, dials, output)
        make_schedule(run.config.optimizer, run.total_steps)
        run.check_memory()
    # A loss has no chance level: degenerate runs are found by the task's own metric.
    scored_by = base.data.best_metric if base.best_metric.endswith(LOSS) else base.best_metric
    return Sweep(base, output, grid, keep, command, scored_by, base.data.chance(scored_by))


@contextmanager
def reports_to(file: Path) -> Iterator[OnReport]:
    """Yield a function that appends reports to `file`.

    Raises:
      NotWritten: the disk is full; the error of writing does not name the file.
    """
    try:
        with file.open("a", encoding="utf-8") as log:
            yield lambda report: print(report, file=log, flush=True)
    except OSError as error:
        if isinstance(error, NotWritten) or error.filename or not full_disk(error):
            raise
        raise NotWritten(file, full_disk(error)) from error


def _turned(base: FinetuneRun, dials: RunDials, directory: Path) -> FinetuneRun:
    return base.turned(
        str(directory),
        seed=dials.seed,
        batch_size=dials.batch_size,
        learning_rate=dials.learning_rate,
        num_epochs=dials.num_epochs,
    )


def identity(run: FinetuneRun) -> dict[str, Any]:
    """All that the scores of a sweep's runs follow from besides their dials."""
    assert run.data.train is not None
    sets = {name: each.fingerprint for name, each in run.data.validation.items()}
    return {
        "config": shared_config(to_plain(run.config)),
        "parameters of init_from": run.source.checksum,
        "dtype": run.compute.dtype,
        "tokenizer": run.tokenizer.fingerprint,
        "examples": {"train": run.data.train.fingerprint, **sets},
    }
