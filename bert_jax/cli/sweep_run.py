"""The runs of a sweep, one after the other: files read once, programs compiled once."""

from __future__ import annotations

import dataclasses
import datetime
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_jax.cli.finetune_run import FinetuneRun, open_run
from bert_jax.files import NotWritten, full_disk
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import PREDICTIONS_NAME
from bert_jax.finetuning.programs import check_finetuning
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.sweep import (
    RESULTS_NAME,
    Grid,
    Provenance,
    RunDials,
    RunResult,
    SweepResults,
    read_results,
    write_results,
)
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
from bert_jax.local_paths import make_directory
from bert_jax.runs.runtime import hardware, versions
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, chosen_step
from bert_jax.training.checkpoint_parameters import load_parameters
from bert_jax.training.distributed import StopRequest
from bert_jax.training.evaluation import TrainingDiverged
from bert_jax.training.optimizer import make_schedule
from bert_jax.training.progress import format_duration, format_metric
from bert_jax.training.sharding import make_mesh, parameter_shardings

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

    def run(self, stop: StopRequest) -> bool:
        """Trains what has not ended yet; False when told to stop before the end."""
        claim(self.output, identity(self.base), self.keep)
        self._collect()
        if self._runs:
            print(f"{len(self._runs)} of {len(self.grid.runs)} runs ended before", flush=True)
        others = self._others()
        if others:
            print(
                f"not in these results: {others} that ended here with other seeds or dials (give "
                "them all at once to have them in)",
                flush=True,
            )
        outputs = self.output / RUNS_NAME / "*" / OUTPUT_NAME
        print(f"runs       {len(self.grid.runs):,}, a line each at its end; {outputs}", flush=True)
        for dials in self.grid.runs:
            if dials in self._runs:
                continue
            if stop.stop_now() or not self._train(dials, stop):
                at = len(self._runs)
                print(
                    f"stopped after {at} of {len(self.grid.runs)} runs; the same command resumes",
                    flush=True,
                )
                return False
            result = self._result(dials)
            assert result is not None
            self._runs[dials] = result
            self._provenance = self._here_and_now()
            self._settle()
            print(self._line(result), flush=True)
        return True

    def results(self) -> SweepResults:
        """What has ended so far."""
        glue = self.base.config.glue
        assert self.base.data.train is not None
        return SweepResults(
            task=glue.task if glue else self.output.resolve().name,
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

    def conclude(self, stop: StopRequest) -> list[str]:
        """Writes the best run's predictions for the test sets; lines: where it and they are.

        Raises:
          ToldToStop: `stop` came before they were all predicted.
        """
        best = self.results().best_run
        if best is None:
            return []
        directory = self.directory(best.dials)
        if not has_model(directory):
            return [f"directory of the best run: {directory} (its parameters were not kept)"]
        return [
            f"directory of the best run: {directory}",
            *(f"predictions: {x}" for x in self._predict(directory, stop)),
        ]

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
        kept = {best.dials} if self.keep == "best" and best else set()
        for dials in self._runs:
            if self.keep != "all" and dials not in kept:
                remove_model(self.directory(dials))

    def _train(self, dials: RunDials, stop: StopRequest) -> bool:
        directory = self.directory(dials)
        make_directory(directory)
        resumed, began = has_model(directory), time.monotonic()
        data = dataclasses.replace(self.base.data, test={})
        run = dataclasses.replace(_turned(self.base, dials, directory), data=data)
        with _printing_to(directory / OUTPUT_NAME), ExitStack() as closing:
            try:
                if not run.train(stop, closing):
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
            directory / CHECKPOINTS_NAME, definition, shardings, chosen_step(directory)
        )
        files = []
        for name, examples in self.base.data.test.items():
            logits, _ = self.base.scorer.answers(params, examples, name, stop.heed)
            files += examples.write(logits, directory / PREDICTIONS_NAME, name)
        return files


def open_sweep(config: FinetuneConfig, output: Path, grid: Grid, keep: Keep, command: str) -> Sweep:
    """Reads the files and checks every combination, so that none is refused later.

    Raises:
      ValueError: as `open_run`; a batch that cannot be split over the devices; a warm-up that is
        longer than a run.
    """
    if not config.evaluation_batch_size:  # the same for all runs: it is compiled once for all
        largest = 4 * (max(grid.batch_sizes) // config.accumulation_steps)
        config = dataclasses.replace(config, evaluation_batch_size=largest)
    first = grid.runs[0]
    config = dataclasses.replace(config, batch_size=first.batch_size)
    base = open_run(config, make_mesh(config.mesh))
    base = dataclasses.replace(base, source=base.source.hold())
    for dials in grid.runs:
        run = _turned(base, dials, output)
        make_schedule(run.config.optimizer, run.total_steps)
        assert run.data.train is not None
        check_finetuning(
            run.config, run.mesh, run.model, run.compute, run.data.train, run.row_lengths
        )
    # A loss has no chance: there the task's own metric tells which runs are degenerate.
    judged = base.data.best_metric if base.best_metric.endswith(LOSS) else base.best_metric
    return Sweep(base, output, grid, keep, command, judged, base.data.chance(judged))


@contextmanager
def _printing_to(file: Path) -> Iterator[None]:
    """Append to `file` what is printed, to stdout and stderr.

    Raises:
      NotWritten: the disk is full; printing raises an error that does not name the file.
    """
    try:
        with file.open("a", encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
            yield
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
        "config": shared_config(run.config),
        "parameters of init_from": run.source.checksum,
        "dtype": run.compute.dtype,
        "tokenizer": run.tokenizer.fingerprint,
        "examples": {"train": run.data.train.fingerprint, **sets},
    }
