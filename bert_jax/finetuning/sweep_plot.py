"""Plot the scores of a sweep's runs against their learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bert_jax.finetuning.sweep_results import Summary, SweepResults
from bert_jax.finetuning.variants import Variant
from bert_jax.plots import new_figure, plain, png_of, show_percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLORS = ("#3b6fb6", "#d9622b", "#3a8f5c", "#8a5ab0", "#b58a1b", "#7a7a7a")
_LINES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))
_INK, _GRID = "#333333", "#e6e6e6"
# The horizontal offset between adjacent lines, and the maximum offset between the first and last
# lines, as fractions of the distance between learning rates.
_SHIFT, _MAX_SHIFT = 0.12, 0.7
# Smaller differences between scores are treated as rounding errors.
_ROUNDING = 1e-6
# The number of letters that fit in one inch of a legend.
_LETTERS_PER_INCH = 13


@dataclass(frozen=True)
class _Line:
    """The runs of a variant with one batch size, and how they are drawn.

    Attributes:
      variant: the values of the varied config keys.
      batch_size: the number of examples per step.
      label: the label in the legend.
      color: the color of the line and its points.
      style: the line style.
      shift: the horizontal offset.
    """

    variant: Variant
    batch_size: int
    label: str
    color: Any
    style: Any
    shift: float


def draw_sweep(results: SweepResults) -> bytes:
    """Return `sweep_figure` as a PNG image."""
    return png_of(sweep_figure(results))


def sweep_figure(results: SweepResults) -> Figure:
    """Return a figure with one panel for each number of epochs.

    In each panel, every combination of variant and batch size has a line through its means and a
    point for each run. Dashed horizontal lines mark the chance level.
    """
    epochs = sorted({run.hyperparameters.num_epochs for run in results.runs})
    figure = new_figure(max(3.2 * len(epochs), 4.8) + 0.6, 4.0)
    title = f"{results.task}: {results.metric.replace('_', ' ')}, every seed and their mean"
    figure.suptitle(plain(title), fontsize=13, fontweight="bold", color=_INK)
    panels = figure.subplots(1, len(epochs), squeeze=False, sharey=True)[0]
    lines = _lines(results)
    for axis, each in zip(panels, epochs, strict=True):
        _draw_panel(axis, each, results, lines)
    low, high = panels[0].get_ylim()
    # If all scores are equal, widen the axis, since a narrow one would magnify rounding errors.
    if high - low < _ROUNDING:
        panels[0].set_ylim((low + high) / 2 - 0.01, (low + high) / 2 + 0.01)
    # The panels use the same colors, so they share one legend.
    handles, labels = panels[0].get_legend_handles_labels()
    columns = len(labels)
    if results.variants:
        fitting = _LETTERS_PER_INCH * figure.get_figwidth() / (max(map(len, labels)) + 6)
        columns = max(1, min(columns, int(fitting)))
        figure.set_figheight(4.0 + 0.2 * (len(labels) / columns - 1))
    style: dict[str, Any] = {"frameon": False, "fontsize": 9, "ncols": columns}
    figure.legend(handles, labels, loc="outside lower center", **style)
    return figure


def _lines(results: SweepResults) -> list[_Line]:
    """Return the lines, with one color per variant or, for a single variant, per batch size."""
    variants = list(dict.fromkeys(run.hyperparameters.variant for run in results.runs))
    sizes = sorted({run.hyperparameters.batch_size for run in results.runs})
    pairs = [(variant, size) for variant in variants for size in sizes]
    colors = _colors(len(variants) if len(variants) > 1 else len(sizes))
    step = min(_SHIFT, _MAX_SHIFT / len(pairs))
    lines = []
    for place, (variant, size) in enumerate(pairs):
        number = sizes.index(size)
        one = len(variants) == 1
        labels = [str(variant)] if variant else []
        labels += [f"batch {size}"] if len(sizes) > 1 or not variant else []
        lines.append(
            _Line(
                variant,
                size,
                label=", ".join(labels),
                color=colors[number if one else variants.index(variant)],
                style=_LINES[0 if one else number % len(_LINES)],
                shift=step * (place - (len(pairs) - 1) / 2),
            )
        )
    return lines


def _colors(count: int) -> Sequence[Any]:
    """Return distinct colors."""
    if count <= len(_COLORS):
        return _COLORS
    from matplotlib import colormaps

    return [colormaps["viridis"](place / (count - 1)) for place in range(count)]


def _draw_panel(axis: Axes, epochs: int, results: SweepResults, lines: Sequence[_Line]) -> None:
    rates = sorted({run.hyperparameters.learning_rate for run in results.runs})
    summaries = [each for each in results.summaries if each.combination.num_epochs == epochs]
    runs = [run for run in results.runs if run.hyperparameters.num_epochs == epochs and run.scores]
    for line in lines:
        places = {rate: place + line.shift for place, rate in enumerate(rates)}
        points = [
            (places[run.hyperparameters.learning_rate], run.scores[results.metric])
            for run in runs
            if run.hyperparameters.batch_size == line.batch_size
            and run.hyperparameters.variant == line.variant
        ]
        x, y = [point[0] for point in points], [point[1] for point in points]
        axis.scatter(x, y, s=16, color=line.color, alpha=0.45, linewidths=0)
        means = _means(summaries, line, results.metric)
        x, y = [places[rate] for rate in means], list(means.values())
        marker: dict[str, Any] = {"marker": "_", "markersize": 11, "linestyle": line.style}
        axis.plot(x, y, color=line.color, linewidth=1.8, label=plain(line.label), **marker)
    if results.chance_metric == results.metric:
        style: dict[str, Any] = {"color": _INK, "linestyle": (0, (4, 3)), "linewidth": 1.2}
        levels = {each.chance for each in results.variants} or {results.chance}
        for number, chance in enumerate(sorted(levels)):
            axis.axhline(chance, label="chance" if number == 0 else None, **style)
    _style_axes(axis, f"{epochs} epoch{'s' * (epochs != 1)}", rates, results.metric)


def _means(summaries: Sequence[Summary], line: _Line, metric: str) -> dict[float, float]:
    """Return a metric's mean for each learning rate, in ascending order of the rates."""
    means = {
        each.combination.learning_rate: each.spreads[metric].mean
        for each in summaries
        if each.combination.batch_size == line.batch_size
        and each.combination.variant == line.variant
        and metric in each.spreads
    }
    return dict(sorted(means.items()))


def _style_axes(axis: Axes, title: str, rates: list[float], metric: str) -> None:
    axis.set_title(title, loc="left", fontsize=11, color=_INK)
    axis.set_xlabel("learning rate", fontsize=9, color=_INK)
    axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
    axis.set_xlim(-0.5, len(rates) - 0.5)
    if metric.endswith("accuracy"):
        show_percent(axis.yaxis)
    axis.tick_params(labelsize=9, colors=_INK, length=0)
    axis.grid(color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)
