"""Describe the results of a sweep as tables and sentences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_jax.finetuning.hyperparameters import Combination
from bert_jax.finetuning.sweep_results import Spread, Summary, SweepResults
from bert_jax.training.reports import format_duration, format_metric

_MISSING = "-"


def tables(results: SweepResults) -> dict[str, list[list[str]]]:
    """Return the tables to show, keyed by title; a sweep without variants has one untitled table.

    The table of all combinations is omitted if each variant has only one combination.
    """
    if not results.variants:
        return {"": table(results)}
    shown = {"each variant with its best hyperparameters": comparison(results)}
    if len(results.summaries) > len(results.best_of_variants):
        shown["all combinations"] = table(results)
    return shown


def table(results: SweepResults) -> list[list[str]]:
    """Return a header row, followed by one row per combination in the order of the summaries.

    Metrics are shown as mean ± sample standard deviation over the seeds that did not diverge.
    """
    return _rows(results, results.summaries)


def comparison(results: SweepResults) -> list[list[str]]:
    """Return a header row, followed by a row for each variant's combination with the best mean.

    Sizes are shown only if they differ between variants.
    """
    best = results.best_of_variants
    facts = {each.variant: each for each in results.variants}
    more = {"train time": [_train_time(each.combination, results) for each in best]}
    for title, name in (
        ("parameters", "num_parameters"),
        ("trainable", "num_trainable"),
        ("examples", "num_examples"),
    ):
        sizes = {variant: getattr(each, name) for variant, each in facts.items()}
        if len(set(sizes.values())) > 1:
            more[title] = [f"{sizes[each.combination.variant]:,}" for each in best]
    return _rows(results, best, more)


def _train_time(combination: Combination, results: SweepResults) -> str:
    """Return the duration of the fastest run with this combination, whatever its learning rate.

    The fastest run is used because the first one also compiles the programs. Runs that diverged or
    stopped earlier than the longest run are skipped.
    """
    alike = [
        run
        for run in results.runs
        if not run.diverged
        and dataclasses.replace(run.hyperparameters.combination, learning_rate=0.0)
        == dataclasses.replace(combination, learning_rate=0.0)
    ]
    if not alike:
        return _MISSING
    steps = max(run.trained_steps for run in alike)
    return format_duration(min(run.seconds for run in alike if run.trained_steps == steps))


def aligned(rows: list[list[str]]) -> list[str]:
    """Return the rows as lines of text with right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def verdict(results: SweepResults) -> list[str]:
    """Return lines about the best combination, the best run and the degenerate runs."""
    metric, best = results.metric, results.best_run
    if best is None:
        return [f"all {len(results.runs)} runs diverged"]
    first, score = results.summaries[0], format_metric(metric, best.scores[metric])
    return [
        f"best combination by mean: {first.combination}: "
        f"{metric} {format_spread(metric, first.spreads[metric])}",
        f"best run: {best.hyperparameters}: {metric} {score} after step {best.step:,}",
        f"degenerate runs: {results.num_degenerate} of {len(results.runs)} ended no better than "
        f"{chance_text(results)}, which is possible without reading the text",
    ]


def summary(results: SweepResults) -> list[str]:
    """Return the tables and the verdict as lines of text."""
    lines = []
    for title, rows in tables(results).items():
        lines += [*([f"{title}:"] if title else []), *aligned(rows), ""]
    return [*lines, *verdict(results)]


def format_spread(name: str, spread: Spread) -> str:
    """Format a metric's mean ± its standard deviation, or the value itself for a single run."""
    mean = format_metric(name, spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {format_metric(name, spread.deviation)}"


def chance_text(results: SweepResults) -> str:
    """Return the chance level with its metric, or the range of the variants' chance levels."""
    levels = {each.chance for each in results.variants} or {results.chance}
    metric = results.chance_metric
    return f"{metric} {_range(*(format_metric(metric, x) for x in (min(levels), max(levels))))}"


def examples_text(results: SweepResults) -> str:
    """Return the number of training examples, or a range if it differs between variants."""
    numbers = {each.num_examples for each in results.variants} or {results.num_examples}
    return _range(f"{min(numbers):,}", f"{max(numbers):,}")


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _rows(
    results: SweepResults, summaries: Sequence[Summary], more: dict[str, list[str]] | None = None
) -> list[list[str]]:
    """Return a header row and one row per summary; `more` contains additional columns."""
    more = more or {}
    others = {name for each in results.summaries for name in each.spreads} - {results.metric}
    names = [results.metric, *sorted(others)]
    keys = sorted({key for each in results.variants for key in each.variant.values})
    head = [*keys, "batch", "learning rate", "epochs", *names, f"best {results.metric}", *more]
    rows = [[*head, "runs", "degenerate", "diverged"]]
    for number, each in enumerate(summaries):
        added = [column[number] for column in more.values()]
        rows.append(_row(each, keys, names, results.metric, added))
    return rows


def _row(
    summary: Summary, keys: list[str], names: list[str], metric: str, added: list[str]
) -> list[str]:
    combination, spreads = summary.combination, summary.spreads
    return [
        *(combination.variant.texts.get(key, _MISSING) for key in keys),
        str(combination.batch_size),
        f"{combination.learning_rate:g}",
        str(combination.num_epochs),
        *(format_spread(name, spreads[name]) if name in spreads else _MISSING for name in names),
        _MISSING if summary.best is None else format_metric(metric, summary.best),
        *added,
        str(summary.num_runs),
        str(summary.degenerate),
        str(summary.diverged),
    ]
