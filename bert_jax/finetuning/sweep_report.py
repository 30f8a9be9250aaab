"""Report sweeps as text for the terminal and as an HTML page with plots and tables."""

from __future__ import annotations

import base64
import io
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bert_jax.files import write_file
from bert_jax.finetuning.sweep_results import Spread, Summary, SweepResults, read_results
from bert_jax.local_paths import make_directory
from bert_jax.runs.outputs import check_output
from bert_jax.training.reports import format_duration, format_metric

_MISSING = "-"


def table(results: SweepResults) -> list[list[str]]:
    """Return a header row, followed by one row per combination in the order of the summaries.

    Metrics are shown as mean ± sample standard deviation over the seeds that did not diverge.
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
    """Return the rows as lines of text with right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.rjust, row, widths)) for row in rows]


def verdict(results: SweepResults) -> list[str]:
    """Return lines about the best combination, the best run and the degenerate runs."""
    metric, best = results.metric, results.best_run
    if best is None:
        return [f"all {len(results.runs)} runs diverged"]
    first, score = results.summaries[0], format_metric(metric, best.scores[metric])
    chance = format_metric(results.chance_metric, results.chance)
    return [
        f"best combination by mean: {first.combination}: "
        f"{metric} {format_spread(metric, first.spreads[metric])}",
        f"best run: {best.hyperparameters}: {metric} {score} after step {best.step:,}",
        f"degenerate runs: {results.num_degenerate} of {len(results.runs)} ended no better than "
        f"{results.chance_metric} {chance}, which is possible without reading the text",
    ]


def summary(results: SweepResults) -> list[str]:
    """Return the lines of the table and of the verdict."""
    return [*aligned(table(results)), "", *verdict(results)]


def format_spread(name: str, spread: Spread) -> str:
    """Format a metric's mean ± its standard deviation, or the value itself for a single run."""
    mean = format_metric(name, spread.mean)
    return mean if spread.deviation is None else f"{mean} ± {format_metric(name, spread.deviation)}"


def _row(summary: Summary, names: list[str], metric: str) -> list[str]:
    combination, spreads = summary.combination, summary.spreads
    return [
        str(combination.batch_size),
        f"{combination.learning_rate:g}",
        str(combination.num_epochs),
        *(format_spread(name, spreads[name]) if name in spreads else _MISSING for name in names),
        _MISSING if summary.best is None else format_metric(metric, summary.best),
        str(summary.num_runs),
        str(summary.degenerate),
        str(summary.diverged),
    ]


_COLORS = ("#3b6fb6", "#d9622b", "#3a8f5c", "#8a5ab0", "#b58a1b", "#7a7a7a")
_INK, _GRID = "#333333", "#e6e6e6"
# The horizontal offset between batch sizes, as a fraction of the distance between learning rates.
_SHIFT = 0.12
_ROUNDING = 1e-6  # smaller differences between scores are rounding errors


def draw_sweep(results: SweepResults) -> bytes:
    """Return a PNG image with one panel for each number of epochs.

    In each panel, every batch size has a line through its means and a point for each run, and a
    dashed line marks the chance level.
    """
    epochs = sorted({run.hyperparameters.num_epochs for run in results.runs})
    figure = Figure(figsize=(max(3.2 * len(epochs), 4.8) + 0.6, 4.0), dpi=110, layout="constrained")
    title = f"{results.task}: {results.metric.replace('_', ' ')}, every seed and their mean"
    figure.suptitle(title, fontsize=13, fontweight="bold", color=_INK)
    panels = figure.subplots(1, len(epochs), squeeze=False, sharey=True)[0]
    for axis, each in zip(panels, epochs, strict=True):
        _draw_panel(axis, each, results)
    low, high = panels[0].get_ylim()
    if high - low < _ROUNDING:  # otherwise the axis would show only rounding errors
        panels[0].set_ylim((low + high) / 2 - 0.01, (low + high) / 2 + 0.01)
    # One legend for all panels, which share their colors.
    handles, labels = panels[0].get_legend_handles_labels()
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": len(labels)}
    figure.legend(handles, labels, loc="outside lower center", **style)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_panel(axis: Axes, epochs: int, results: SweepResults) -> None:
    rates = sorted({run.hyperparameters.learning_rate for run in results.runs})
    sizes = sorted({run.hyperparameters.batch_size for run in results.runs})
    summaries = [each for each in results.summaries if each.combination.num_epochs == epochs]
    for number, size in enumerate(sizes):
        shift = _SHIFT * (number - (len(sizes) - 1) / 2)
        places = {rate: place + shift for place, rate in enumerate(rates)}
        color = _COLORS[number % len(_COLORS)]
        points = [
            (places[run.hyperparameters.learning_rate], run.scores[results.metric])
            for run in results.runs
            if run.hyperparameters.num_epochs == epochs
            and run.hyperparameters.batch_size == size
            and run.scores
        ]
        x, y = [point[0] for point in points], [point[1] for point in points]
        axis.scatter(x, y, s=16, color=color, alpha=0.45, linewidths=0)
        means = _means(summaries, size, results.metric)
        x, y = [places[rate] for rate in means], list(means.values())
        axis.plot(
            x, y, color=color, linewidth=1.8, marker="_", markersize=11, label=f"batch {size}"
        )
    if results.chance_metric == results.metric:
        line: dict[str, Any] = {"color": _INK, "linestyle": (0, (4, 3)), "linewidth": 1.2}
        axis.axhline(results.chance, label="chance", **line)
    _style_axes(axis, f"{epochs} epoch{'s' * (epochs != 1)}", rates, results.metric)


def _means(summaries: list[Summary], batch_size: int, metric: str) -> dict[float, float]:
    """Return a metric's mean for each learning rate, in ascending order of the rates."""
    means = {
        each.combination.learning_rate: each.spreads[metric].mean
        for each in summaries
        if each.combination.batch_size == batch_size and metric in each.spreads
    }
    return dict(sorted(means.items()))


def _style_axes(axis: Axes, title: str, rates: list[float], metric: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, color=_INK)
    axis.set_xlabel("learning rate", fontsize=9, color=_INK)
    axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axis.set_xlim(-0.5, len(rates) - 0.5)
    if metric.endswith("accuracy"):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.tick_params(labelsize=9, colors=_INK, length=0)
    axis.grid(color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)


REPORT_NAME = "report.html"
PICTURE_NAME = "report.png"

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --page: #fff; --line: #ddd; --best: #e8f0fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --page: #16181c; --line: #3a3d44; --best: #22324a; }
}
body { color: var(--ink); background: var(--page); margin: 2em auto; max-width: 72em;
  padding: 0 1em; font: 15px/1.5 system-ui, sans-serif; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25em 0.8em; text-align: right; border-bottom: 1px solid var(--line); }
tbody tr:first-child { background: var(--best); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 0.5em 0; overflow-wrap: anywhere; }
"""


def write_report(sweeps: Sequence[SweepResults], directory: Path) -> list[Path]:
    """Write a self-contained `report.html` and each sweep's plot, and return the files.

    A single sweep's plot is `report.png`; the plots for multiple sweeps are `report-1-TASK.png` and
    so on.
    """
    make_directory(directory)
    pictures = [draw_sweep(each) for each in sweeps]
    parts = [_section(*each) for each in zip(sweeps, pictures, strict=True)]
    files = [directory / REPORT_NAME]
    write_file(files[0], _page([each.task for each in sweeps], parts))
    for number, (sweep, picture) in enumerate(zip(sweeps, pictures, strict=True), start=1):
        name = re.sub(r"[^\w.-]+", "-", sweep.task)
        files.append(
            directory / (PICTURE_NAME if len(sweeps) == 1 else f"report-{number}-{name}.png")
        )
        write_file(files[-1], picture)
    return files


def combine_reports(
    directories: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> tuple[list[SweepResults], list[Path]]:
    """Write a single report on one or more sweeps, finished or not.

    Args:
      directories: the sweeps' output directories.
      output: the directory to write to; for a single sweep, it may be that sweep's own directory.

    Returns:
      The sweeps' results, and the paths of the report's files.

    Raises:
      ValueError: a directory has no results, or `output` already holds something else.
    """
    output = Path(output)
    own = [output.resolve()] == [Path(directory).resolve() for directory in directories]
    check_output(output, "--output", may_be=["sweep"] if own else [])
    sweeps = [read_results(Path(directory)) for directory in directories]
    return sweeps, write_report(sweeps, output)


def _page(tasks: Sequence[str], sections: Sequence[str]) -> str:
    title = f"Fine-tuning sweep: {escape(', '.join(tasks))}"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            *sections,
            "</body>\n</html>\n",
        ]
    )


def _section(results: SweepResults, picture: bytes) -> str:
    lines, encoded = verdict(results), base64.b64encode(picture).decode()
    missing = results.planned - len(results.runs)
    unfinished = f"<p>{missing} of {results.planned} runs are still to come.</p>" if missing else ""
    task = escape(results.task)
    return "\n".join(
        [
            f"<section>\n<h2>{task}</h2>\n{unfinished}",
            "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>",
            f'<p><img alt="{task}: score against learning rate" '
            f'src="data:image/png;base64,{encoded}"/></p>',
            f'<div class="wide">{_table(table(results))}</div>',
            _provenance(results),
            "</section>",
        ]
    )


def _table(rows: list[list[str]]) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "\n".join(cells(row, "td") for row in rows[1:])
    return f"<table>\n<thead>{cells(rows[0], 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _provenance(results: SweepResults) -> str:
    origin = results.provenance
    seconds = format_duration(sum(run.seconds for run in results.runs))
    facts = {
        "Scores": "mean ± sample standard deviation, over seeds, of each run's best evaluation on "
        "the validation set. Degenerate runs ended no better than is possible without reading the "
        f"text ({results.chance_metric} {format_metric(results.chance_metric, results.chance)}), "
        "or diverged. The means exclude runs that diverged",
        "Training examples": f"{results.num_examples:,}",
        "Duration of all train steps": seconds,
        "Date": origin.date,
        "Hardware": origin.hardware,
        "Versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
        "Command": origin.command,
    }
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"
