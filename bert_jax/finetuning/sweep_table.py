"""A sweep in words and figures, for the terminal and for the report."""

from __future__ import annotations

from bert_jax.finetuning.sweep import Combination, RunDials, Spread, Summary
from bert_jax.finetuning.sweep_results import SweepResults
from bert_jax.training.progress import format_metric

_MISSING = "-"


def table(results: SweepResults) -> list[list[str]]:
    """A row of headings and one for every combination, as `SweepResults.summaries` sorts them.

    Metrics are mean ± sample standard deviation over the seeds that did not diverge.
    """
    summaries = results.summaries
    others = {name for each in summaries for name in each.spreads} - {results.metric}
    names = [results.metric, *sorted(others)]
    head = ["batch", "learning rate", "epochs", *names, f"best {results.metric}"]
    return [
        [*head, "runs", "degenerate", "diverged"],
        *(_row(each, names, results.metric) for each in summaries),
    ]


def aligned(rows: list[list[str]]) -> list[str]:
    """The rows as lines of equally wide columns, flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def verdict(results: SweepResults) -> list[str]:
    """Lines: the best combination, the best run, chance and the runs that are no better."""
    metric, best = results.metric, results.best_run
    if best is None:
        return [f"all of {len(results.runs)} runs diverged"]
    first, score = results.summaries[0], format_metric(metric, best.scores[metric])
    chance = format_metric(results.chance_metric, results.chance)
    return [
        f"best combination by mean: {combination_words(first.combination)}: "
        f"{metric} {spread_words(metric, first.spreads[metric])}",
        f"best run: {dials_words(best.dials)}: {metric} {score} after step {best.step:,}",
        f"degenerate, at the end no better than {results.chance_metric} {chance}, which can be had "
        "without reading the text: "
        f"{results.num_degenerate} of {len(results.runs)} runs",
    ]


def combination_words(combination: Combination) -> str:
    """The dials as people say them."""
    epochs = f"{combination.num_epochs} epoch{'s' * (combination.num_epochs != 1)}"
    return f"batch {combination.batch_size}, learning rate {combination.learning_rate:g}, {epochs}"


def dials_words(dials: RunDials) -> str:
    """Those of a run."""
    return f"{combination_words(dials.combination)}, seed {dials.seed}"


def spread_words(name: str, spread: Spread) -> str:
    """Mean ± standard deviation; of a single run the mean alone."""
    mean = format_metric(name, spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {format_metric(name, spread.deviation)}"


def _row(summary: Summary, names: list[str], metric: str) -> list[str]:
    dials, spreads = summary.combination, summary.spreads
    return [
        str(dials.batch_size),
        f"{dials.learning_rate:g}",
        str(dials.num_epochs),
        *(spread_words(name, spreads[name]) if name in spreads else _MISSING for name in names),
        _MISSING if summary.best is None else format_metric(metric, summary.best),
        str(summary.num_runs),
        str(summary.degenerate),
        str(summary.diverged),
    ]
