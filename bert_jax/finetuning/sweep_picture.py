"""A sweep as one picture: the score against the learning rate."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from bert_jax.finetuning.sweep import Summary
from bert_jax.finetuning.sweep_results import SweepResults

_COLOURS = ("#3b6fb6", "#d9622b", "#3a8f5c", "#8a5ab0", "#b58a1b", "#7a7a7a")
_INK, _GRID = "#333333", "#e6e6e6"
_APART = 0.12  # of the distance of two learning rates: points of two batch sizes side by side

_ROUNDING = 1e-6  # what is closer is no difference


def draw_sweep(results: SweepResults) -> bytes:
    """A PNG: a panel for each number of epochs, a line through the means of each batch size, a
    point for each seed, and chance as a dashed line."""
    epochs = sorted({run.dials.num_epochs for run in results.runs})
    figure = Figure(figsize=(max(3.2 * len(epochs), 4.8) + 0.6, 4.0), dpi=110, layout="constrained")
    title = f"{results.task}: {results.metric.replace('_', ' ')}, every seed and their mean"
    figure.suptitle(title, fontsize=13, fontweight="bold", color=_INK)
    panels = figure.subplots(1, len(epochs), squeeze=False, sharey=True)[0]
    for axis, each in zip(panels, epochs, strict=True):
        _draw_panel(axis, each, results)
    low, high = panels[0].get_ylim()
    if high - low < _ROUNDING:  # of equal scores the axis would be one of their last digits
        panels[0].set_ylim((low + high) / 2 - 0.01, (low + high) / 2 + 0.01)
    # One legend for all panels, which share their colours.
    handles, labels = panels[0].get_legend_handles_labels()
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": len(labels)}
    figure.legend(handles, labels, loc="outside lower center", **style)
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def _draw_panel(axis: Axes, epochs: int, results: SweepResults) -> None:
    rates = sorted({run.dials.learning_rate for run in results.runs})
    sizes = sorted({run.dials.batch_size for run in results.runs})
    summaries = [each for each in results.summaries if each.combination.num_epochs == epochs]
    for number, size in enumerate(sizes):
        shift = _APART * (number - (len(sizes) - 1) / 2)
        places = {rate: place + shift for place, rate in enumerate(rates)}
        colour = _COLOURS[number % len(_COLOURS)]
        points = [
            (places[run.dials.learning_rate], run.scores[results.metric])
            for run in results.runs
            if (run.dials.num_epochs, run.dials.batch_size) == (epochs, size) and run.scores
        ]
        x, y = [point[0] for point in points], [point[1] for point in points]
        axis.scatter(x, y, s=16, color=colour, alpha=0.45, linewidths=0)
        means = _means(summaries, size, results.metric)
        x, y = [places[rate] for rate in means], list(means.values())
        axis.plot(
            x, y, color=colour, linewidth=1.8, marker="_", markersize=11, label=f"batch {size}"
        )
    if results.chance_metric == results.metric:
        line: dict[str, Any] = {"color": _INK, "linestyle": (0, (4, 3)), "linewidth": 1.2}
        axis.axhline(results.chance, label="chance", **line)
    _dress(axis, f"{epochs} epoch{'s' * (epochs != 1)}", rates, results.metric)


def _means(summaries: list[Summary], batch_size: int, metric: str) -> dict[float, float]:
    """By learning rate, ascending."""
    means = {
        each.combination.learning_rate: each.spreads[metric].mean
        for each in summaries
        if each.combination.batch_size == batch_size and metric in each.spreads
    }
    return dict(sorted(means.items()))


def _dress(axis: Axes, title: str, rates: list[float], metric: str) -> None:
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
