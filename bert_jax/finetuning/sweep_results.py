"""The grid of a sweep, the results of its runs, and the file that holds them."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.files import write_file
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import check_local
from bert_jax.validation import check_seed

# Whenever a run ends, the directories of all other runs are read.
MAX_RUNS = 10_000
_DIALS = ("batch_sizes", "learning_rates", "num_epochs")


@dataclass(frozen=True, order=True)
class Combination:
    """What a sweep chooses between; `learning_rate` is the peak."""

    batch_size: int
    learning_rate: float
    num_epochs: int


@dataclass(frozen=True, order=True)
class RunDials:
    """A run of a sweep."""

    batch_size: int
    learning_rate: float
    num_epochs: int
    seed: int

    @property
    def combination(self) -> Combination:
        """The dials that runs of other seeds share."""
        return Combination(self.batch_size, self.learning_rate, self.num_epochs)

    @property
    def name(self) -> str:
        """Of the run's directory."""
        return (
            f"batch{self.batch_size}-rate{self.learning_rate!r}-epochs{self.num_epochs}"
            f"-seed{self.seed}"
        )


@dataclass(frozen=True)
class Grid:
    """Every combination with every seed; the defaults are those of Devlin et al. 2019.

    Batch sizes and epochs are of its appendix A.3, rates of section 4.1, which has 4e-5 besides.

    num_seeds: runs of a combination; their seeds count up from `first_seed`.
    """

    batch_sizes: tuple[int, ...] = (16, 32)
    learning_rates: tuple[float, ...] = (5e-5, 4e-5, 3e-5, 2e-5)
    num_epochs: tuple[int, ...] = (2, 3, 4)
    num_seeds: int = 5
    first_seed: int = 0

    def __post_init__(self) -> None:
        for name, values in zip(_DIALS, self._dials, strict=True):
            if not values or not all(0 < value < math.inf for value in values):
                raise ValueError(
                    f"{name}={list(values)}: expected one or more, each above 0 and finite"
                )
            if len(set(values)) < len(values):
                raise ValueError(f"{name}={list(values)}: one of them is there twice")
        if self.num_seeds < 1:
            raise ValueError(f"seeds={self.num_seeds}: must be at least 1")
        check_seed(self.first_seed, "first_seed")
        if self.first_seed + self.num_seeds > 1 << 32:
            raise ValueError(
                f"num_seeds={self.num_seeds} from first_seed={self.first_seed}: seeds must be at "
                "most 2^32 - 1"
            )
        if (runs := math.prod(map(len, self._dials)) * self.num_seeds) > MAX_RUNS:
            raise ValueError(
                f"the grid has {runs:,} runs ({self.num_seeds:,} seeds per combination); expected "
                f"at most {MAX_RUNS:,}. Use fewer seeds or fewer values"
            )

    @property
    def _dials(self) -> tuple[tuple[float, ...], ...]:
        return tuple(getattr(self, name) for name in _DIALS)

    @property
    def combinations(self) -> list[Combination]:
        """All of them."""
        return [
            Combination(batch_size, learning_rate, epochs)
            for batch_size in self.batch_sizes
            for learning_rate in self.learning_rates
            for epochs in self.num_epochs
        ]

    @property
    def runs(self) -> list[RunDials]:
        """All of them, seed after seed: a sweep that is cut short has whole grids."""
        seeds = range(self.first_seed, self.first_seed + self.num_seeds)
        return [
            RunDials(c.batch_size, c.learning_rate, c.num_epochs, seed)
            for seed in seeds
            for c in self.combinations
        ]


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    scores: of its best evaluation, after `step`; none if it diverged. seconds: of its train steps,
      the compilation of new ones among them, without evaluation. degenerate: at its end no better
      than `TaskData.chance` (a "failed run" of Mosbach et al. 2021, section 3), or diverged.
      diverged: why it could not go on; empty if it could.
    """

    dials: RunDials
    scores: dict[str, float]
    step: int
    seconds: float
    degenerate: bool
    diverged: str = ""


@dataclass(frozen=True)
class Spread:
    """A metric over the seeds of a combination.

    deviation: the sample standard deviation (n - 1); None for a single run.
    """

    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Summary:
    """The runs of a combination. spreads, best: over those that did not diverge, None if all did.

    best: the best of the metric that the sweep compares by.
    """

    combination: Combination
    num_runs: int
    spreads: dict[str, Spread]
    best: float | None
    degenerate: int
    diverged: int


def summarise(
    results: Iterable[RunResult], metric: str, *, lower_is_better: bool = False
) -> list[Summary]:
    """The combinations, the best mean of `metric` first; those with a diverged run come last."""
    of: dict[Combination, list[RunResult]] = {}
    for result in results:
        of.setdefault(result.dials.combination, []).append(result)
    found = [_summary(each, runs, metric, lower_is_better) for each, runs in sorted(of.items())]
    sign = 1.0 if lower_is_better else -1.0

    def rank(summary: Summary) -> tuple[bool, bool, float]:
        spread = summary.spreads.get(metric)
        return spread is None, summary.diverged > 0, sign * spread.mean if spread else 0.0

    return sorted(found, key=rank)


def best_run(
    results: Iterable[RunResult], metric: str, *, lower_is_better: bool = False
) -> RunResult | None:
    """The run that did best by `metric`, of equal ones the first by its dials; None if there is
    none that did not diverge."""
    ended = sorted((each for each in results if not each.diverged), key=lambda each: each.dials)
    sign = 1.0 if lower_is_better else -1.0
    return min(ended, key=lambda each: sign * each.scores[metric], default=None)


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
        """See `bert_jax.finetuning.sweep_results.best_run`."""
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
