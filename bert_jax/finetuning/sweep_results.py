"""Collect the results of a sweep's runs, compute their statistics, and store them in a file."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.finetuning.hyperparameters import Combination, Hyperparameters
from bert_jax.finetuning.variants import Variant
from bert_jax.json_files import check_kinds, expecting_fields, read_json_object
from bert_jax.storage.errors import naming_store_errors, naming_url
from bert_jax.storage.locations import is_file, local_copy
from bert_jax.storage.urls import Location, ObjectUrl, parse_location


@dataclass(frozen=True)
class RunResult:
    """The result of one run in a sweep.

    Attributes:
      hyperparameters: the hyperparameters of the run.
      scores: the scores of the best evaluation; empty if the run diverged.
      step: the step of the best evaluation.
      seconds: the duration of the train steps, including their compilation but not the evaluations.
      degenerate: whether the last evaluation was no better than `TaskData.chance` (a "failed run"
        in Mosbach et al. 2021, section 3), or the run diverged.
      diverged: the reason why the run diverged; empty if it did not.
      trained_steps: the number of train steps that the run completed before it ended; 0 in older
        results, which did not record it.
    """

    hyperparameters: Hyperparameters
    scores: dict[str, float]
    step: int
    seconds: float
    degenerate: bool
    diverged: str = ""
    trained_steps: int = 0


@dataclass(frozen=True)
class Spread:
    """The distribution of a metric over the seeds of a combination.

    Attributes:
      mean: the mean of the metric.
      deviation: the sample standard deviation (n - 1); None for a single run.
    """

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Summary:
    """Statistics for the runs of one combination.

    Attributes:
      combination: the hyperparameters that the runs share.
      num_runs: the number of runs.
      spreads: the distribution of each metric over the runs that did not diverge.
      best: the best value of the metric that runs are compared by; None if all runs diverged.
      degenerate: the number of degenerate runs.
      diverged: the number of runs that diverged.
    """

    combination: Combination
    num_runs: int
    spreads: dict[str, Spread]
    best: float | None
    degenerate: int
    diverged: int


def summarize(
    results: Iterable[RunResult], metric: str, *, lower_is_better: bool = False
) -> list[Summary]:
    """Return a summary of each combination, sorted by the mean of `metric`, best first.

    Combinations with a diverged run come last.
    """
    groups: dict[Combination, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.hyperparameters.combination, []).append(result)
    summaries = [
        _summary(each, runs, metric, lower_is_better) for each, runs in sorted(groups.items())
    ]
    sign = 1.0 if lower_is_better else -1.0

    def rank(summary: Summary) -> tuple[bool, bool, float]:
        spread = summary.spreads.get(metric)
        return spread is None, summary.diverged > 0, sign * spread.mean if spread else 0.0

    return sorted(summaries, key=rank)


def best_run(
    results: Iterable[RunResult], metric: str, *, lower_is_better: bool = False
) -> RunResult | None:
    """Return the run with the best value of `metric`, or None if all runs diverged.

    Ties are broken in favor of the smallest hyperparameters.
    """
    finite = [each for each in results if not each.diverged]
    sign = 1.0 if lower_is_better else -1.0

    def rank(result: RunResult) -> tuple[float, Hyperparameters]:
        return sign * result.scores[metric], result.hyperparameters

    return min(finite, key=rank, default=None)


def _summary(
    combination: Combination, runs: Sequence[RunResult], metric: str, lower_is_better: bool
) -> Summary:
    ended = [run for run in runs if not run.diverged]
    values = (
        {name: [run.scores[name] for run in ended] for name in ended[0].scores} if ended else {}
    )
    choose = min if lower_is_better else max
    return Summary(
        combination,
        num_runs=len(runs),
        spreads={name: _spread(each) for name, each in values.items()},
        best=choose(values[metric]) if ended else None,
        degenerate=sum(run.degenerate for run in runs),
        diverged=len(runs) - len(ended),
    )


def _spread(values: Sequence[float]) -> Spread:
    deviation = statistics.stdev(values) if len(values) > 1 else None
    return Spread(statistics.fmean(values), deviation)


RESULTS_NAME = "results.json"


@dataclass(frozen=True)
class Provenance:
    """The origin of a sweep's results.

    Attributes:
      command: the command that repeats the sweep.
      date: the date and time at which the last run ended, in UTC.
      hardware: the number and kind of devices.
      versions: the software versions, keyed by package name.
    """

    command: str
    date: str
    hardware: str
    versions: dict[str, str]


@dataclass(frozen=True)
class VariantFacts:
    """Properties that all runs of a variant share.

    Attributes:
      variant: the values of the varied config keys.
      num_parameters: the number of parameters of the model.
      num_trainable: the number of parameters that are trained.
      num_examples: the number of training examples.
      chance: `TaskData.chance` for the sweep's `chance_metric`.
    """

    variant: Variant
    num_parameters: int
    num_trainable: int
    num_examples: int
    chance: float


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep's runs that have ended so far.

    Attributes:
      task: the name of the task.
      metric: the metric that runs are compared by.
      lower_is_better: whether a lower value of the metric is better.
      chance_metric: the metric that identifies degenerate runs: `metric`, unless that is a loss.
      chance: `TaskData.chance` for that metric. If the sweep varies the data, see `variants`
        instead.
      num_examples: the number of training examples. If the sweep varies the data, see `variants`
        instead.
      planned: the number of runs in the whole sweep.
      runs: the results of the runs, in grid order.
      provenance: the origin of the results.
      variants: the shared properties of each variant's runs; empty if the sweep varies no config
        keys.
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
    variants: tuple[VariantFacts, ...] = ()

    @property
    def summaries(self) -> list[Summary]:
        """The summaries of all combinations, best first; see `summarize`."""
        return summarize(self.runs, self.metric, lower_is_better=self.lower_is_better)

    @property
    def best_of_variants(self) -> list[Summary]:
        """The first summary of each variant, which has the variant's best mean."""
        best: dict[Variant, Summary] = {}
        for summary in self.summaries:
            best.setdefault(summary.combination.variant, summary)
        return list(best.values())

    @property
    def best_run(self) -> RunResult | None:
        """The run with the best value of `metric`, or None if all runs diverged."""
        return best_run(self.runs, self.metric, lower_is_better=self.lower_is_better)

    @property
    def num_degenerate(self) -> int:
        """The number of runs that diverged or were no better than chance."""
        return sum(run.degenerate for run in self.runs)


# The key of a run's hyperparameters in `results.json`.
_HYPERPARAMETERS_KEY = "dials"


def write_results(results: SweepResults, directory: Path) -> None:
    """Write `results.json` atomically."""
    values = to_plain(results)
    values["runs"] = [_plain_run(run) for run in results.runs]
    if not results.variants:
        del values["variants"]
    for facts, each in zip(values.get("variants", ()), results.variants, strict=True):
        facts["variant"] = each.variant.values
    write_file(directory / RESULTS_NAME, json.dumps(values, indent=2) + "\n")


def _plain_run(run: RunResult) -> dict[str, Any]:
    values = _renamed(to_plain(run), "hyperparameters", _HYPERPARAMETERS_KEY)
    if run.hyperparameters.variant:
        values[_HYPERPARAMETERS_KEY]["variant"] = run.hyperparameters.variant.values
    else:
        del values[_HYPERPARAMETERS_KEY]["variant"]
    return values


def read_results(directory: str | os.PathLike[str]) -> SweepResults:
    """Return the results that `write_results` wrote.

    Args:
      directory: the sweep's directory, or its URL.

    Raises:
      ValueError: there is no such file, or it is damaged.
      StorageError: the file is in a bucket and cannot be read.
    """
    location = parse_location(directory)
    if not isinstance(location, ObjectUrl):
        return _read(location)
    url = location / RESULTS_NAME
    with naming_store_errors("", location):
        if not is_file(url):
            raise ValueError(_without_results(location))
        file = local_copy(url)
    with naming_url(file, url):
        return _read(file.parent)


def _without_results(directory: Location) -> str:
    return (
        f"{directory}: contains no {RESULTS_NAME}. Specify the output directory of a `bert-jax "
        "sweep` with at least one finished run."
    )


def _read(directory: Path) -> SweepResults:
    file = directory / RESULTS_NAME
    if not file.is_file():
        raise ValueError(_without_results(directory))
    fix = "Remove it and repeat the sweep"
    values = read_json_object(file, fix)
    with expecting_fields(file, fix):
        check_kinds(values, runs=list)
        runs = []
        for run in values["runs"]:
            hyperparameters = _with_variant(run[_HYPERPARAMETERS_KEY])
            renamed = _renamed(run, _HYPERPARAMETERS_KEY, "hyperparameters")
            runs.append({**renamed, "hyperparameters": hyperparameters})
        variants = [_with_variant(facts) for facts in values.get("variants", ())]
    read = {**values, "runs": runs, "variants": variants}
    return to_dataclass(SweepResults, read, str(file))


def _with_variant(values: dict[str, Any]) -> dict[str, Any]:
    """Return a variant's properties from the file, with the variant converted to a `Variant`."""
    variant = Variant.of(values.get("variant", {}))
    hash(variant)  # raises TypeError if a value is a JSON object
    return {**values, "variant": variant}


def _renamed(values: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """Return a dictionary with one key renamed, keeping the order of the keys."""
    return {new if key == old else key: value for key, value in values.items()}
