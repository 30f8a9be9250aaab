"""The file of a sweep's results, and what follows from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.finetuning.sweep import RunResult, Summary, best_run, summarise
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local

RESULTS_NAME = "results.json"


@dataclass(frozen=True)
class Provenance:
    """Where results come from. date: UTC, of the last run. versions: of software, by name."""

    command: str
    date: str
    hardware: str
    versions: dict[str, str]


@dataclass(frozen=True)
class SweepResults:
    """The runs of a sweep so far.

    metric: by which runs are compared. chance: `TaskData.chance` of
      `chance_metric`, which is `metric` unless that is a loss.
    num_examples: that each run learns from. planned: runs of the whole sweep.
    """

    task: str
    metric: str
    lower_is_better: bool
    chance_metric: str
    chance: float
    num_examples: int
    planned: int
    runs: tuple[RunResult, ...]
    provenance: Provenance

    @property
    def summaries(self) -> list[Summary]:
        """See `summarise`."""
        return summarise(self.runs, self.metric, lower_is_better=self.lower_is_better)

    @property
    def best_run(self) -> RunResult | None:
        """See `bert_jax.finetuning.sweep.best_run`."""
        return best_run(self.runs, self.metric, lower_is_better=self.lower_is_better)

    @property
    def num_degenerate(self) -> int:
        """Runs no better than chance, or diverged."""
        return sum(run.degenerate for run in self.runs)


def write_results(results: SweepResults, directory: Path) -> None:
    """Writes `results.json`, whole or not at all."""
    write_file(directory / RESULTS_NAME, json.dumps(to_plain(results), indent=2) + "\n")


def read_results(directory: Path) -> SweepResults:
    """What `write_results` wrote.

    Raises:
      ValueError: there is no such file, or it is damaged.
    """
    check_local(directory)
    file = directory / RESULTS_NAME
    if not file.is_file():
        raise ValueError(
            f"{directory}: no {RESULTS_NAME} in it; expected the output of a `bert-jax sweep` with "
            "at least one run finished"
        )
    values = read_json_object(file, "Remove it and repeat the sweep")
    return to_dataclass(SweepResults, values, str(file))
