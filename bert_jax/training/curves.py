"""Draw learning curves from a run's log."""

from __future__ import annotations

import logging
import math
import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_jax.files import write_file
from bert_jax.plots import new_figure, plain, png_of, show_percent
from bert_jax.training.downstream_log import DOWNSTREAM_PREFIX, read_downstream_scores
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reports import (
    AVERAGE_PREFIX,
    PAIRS_ACCURACY,
    PAIRS_PREFIX,
    TEXT_PREFIX,
    format_metric,
    is_on_other_data,
    phenomenon_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

logger = logging.getLogger(__name__)

Points = tuple[np.ndarray, np.ndarray]

_TRAIN, _HELD_OUT, INK, _GRID = "#3b6fb6", "#d9622b", "#333333", "#e6e6e6"

# The titles of the panels in reading order, two per row. Metrics that are not listed here come
# last, with their names as titles.
_TITLES = {
    "mlm_loss": "Masked-token loss (nats)",
    "mlm_accuracy": "Masked-token accuracy",
    "nsp_loss": "Next-sentence loss (nats)",
    "nsp_accuracy": "Next-sentence accuracy",
    "sop_loss": "Sentence-order loss (nats)",
    "sop_accuracy": "Sentence-order accuracy",
    "replaced_loss": "Replaced-token loss (nats)",
    "replaced_accuracy": "Replaced-token accuracy",
    "replaced_precision": "Replaced-token precision",
    "replaced_recall": "Replaced-token recall",
    "loss": "Loss (nats)",
    "accuracy": "Accuracy",
}
_TEXT_TITLES = {
    "mlm_loss": "masked-token loss (nats)",
    "mlm_accuracy": "masked-token accuracy",
    "pseudo_perplexity": "pseudo-perplexity",
}
SPEED = {"learning_rate": "Learning rate", "tokens_per_second": "Real tokens per second"}
_NOT_DRAWN = {"kind", "step", "steps", "seconds", "compiling", "stall", "utilisation"}


def draw_curves(log: str | os.PathLike[str], output: str | os.PathLike[str], *, title: str) -> None:
    """Plot each metric on training and held-out text against the step, and save a PNG image.

    The image is written atomically. Nothing is drawn if the log has no entries.

    Args:
      log: a run's `metrics.jsonl`. If there is a log of fine-tuned checkpoints next to it, the
        main score of each task is plotted too. If that log is damaged, a warning is logged once.
      output: the path of the image.
      title: the title above the panels.

    Raises:
      NotWritten: the image cannot be written.
      ValueError: `log` is damaged.
    """
    entries = read_metrics(log) + _downstream_entries(Path(log).parent)
    names = panel_names(entries)
    if not names:
        return
    rows = math.ceil(len(names) / 2)
    figure = new_figure(9.6, 2.9 * rows + 0.5)
    figure.suptitle(plain(title), fontsize=14, fontweight="bold", color=INK)
    axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axis, name in zip(axes, names, strict=False):
        _draw_panel(axis, name, entries)
        if name.endswith(PAIRS_ACCURACY):
            _draw_phenomena(axis, name, entries)
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    write_file(Path(output), png_of(figure))


def _downstream_entries(work_dir: Path) -> list[dict[str, Any]]:
    """Return the main score of each fine-tuned checkpoint as a log entry of an evaluation."""
    try:
        scores = read_downstream_scores(work_dir)
    except ValueError as error:
        # Another process may have written the log, and training does not need the scores.
        text = str(error).rstrip(".")
        _warn_once(f"{text}. The curves do not show the scores of fine-tuned checkpoints.")
        return []
    return [
        {
            "kind": "evaluation",
            "step": score.step,
            f"{DOWNSTREAM_PREFIX}{score.task}: {score.metric}": score.scores[score.metric],
        }
        for score in scores
        if score.metric in score.scores
    ]


@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def panel_names(entries: list[dict[str, Any]]) -> list[str]:
    """Return the names of the metrics to draw from the entries of a log, in order."""
    drawn = (entry for entry in entries if entry["kind"] in ("train", "evaluation"))
    names = {name for entry in drawn for name in entry} - _NOT_DRAWN
    if any(name.endswith("_loss") for name in names):
        names.discard("loss")  # the weighted sum of the other losses
    names = {name for name in names if not (name.endswith("mlm_perplexity") or phenomenon_of(name))}
    metrics = [name for name in names if name not in SPEED]
    order = list(_TITLES)
    metrics.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    return metrics + [name for name in SPEED if name in names]


def _draw_panel(axis: Axes, name: str, entries: list[dict[str, Any]]) -> None:
    train = points_of(entries, "train", name)
    held_out = points_of(entries, "evaluation", name)
    if name in SPEED:
        axis.plot(*train, color=_TRAIN, linewidth=1.6)
    elif len(train[0]):
        axis.plot(*train, color=_TRAIN, linewidth=0.8, alpha=0.3)
        axis.plot(*smooth(train), color=_TRAIN, linewidth=1.8, label="training")
    if len(held_out[0]):
        axis.plot(*held_out, color=_HELD_OUT, linewidth=1.8, marker="o", markersize=3.5)
        if not (is_on_other_data(name) or name.startswith(DOWNSTREAM_PREFIX)):
            axis.plot([], [], color=_HELD_OUT, marker="o", markersize=3.5, label="held out")
        text = format_metric(name, held_out[1][-1])
        last_point = (held_out[0][-1], held_out[1][-1])
        axis.margins(y=0.15)  # leaves room between the legend and the last value's label
        axis.annotate(
            text,
            last_point,
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
            color=_HELD_OUT,
            fontweight="bold",
            bbox={"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1},
        )
    if axis.get_legend_handles_labels()[1]:
        # Put the legend next to the title, since matplotlib is slow to find a free spot among long
        # curves.
        axis.legend(
            loc="lower right",
            bbox_to_anchor=(1, 1),
            borderaxespad=0.2,
            ncols=2,
            columnspacing=1.2,
            frameon=False,
            fontsize=9,
        )
    format_axis(axis, name)


def _draw_phenomena(axis: Axes, name: str, entries: list[dict[str, Any]]) -> None:
    """Add a curve for each phenomenon to the panel for the accuracy on all minimal pairs."""
    prefix = name.removesuffix(PAIRS_ACCURACY)
    names = sorted({each for entry in entries for each in entry if phenomenon_of(each)})
    metrics = [each for each in names if each.startswith(f"{prefix}{PAIRS_PREFIX}")]
    for number, metric in enumerate(metrics):
        label = plain(phenomenon_of(metric).replace("_", " "))
        points = points_of(entries, "evaluation", metric)
        axis.plot(*points, color=f"C{number % 10}", linewidth=0.8, alpha=0.8, label=label)
    axis.legend(loc="upper left", ncols=2, fontsize=5, edgecolor="none", framealpha=0.7)


def panel_title(name: str) -> str:
    """Return the title of a metric's panel."""
    if name.startswith(DOWNSTREAM_PREFIX):
        return f"Fine-tuned on {name.removeprefix(DOWNSTREAM_PREFIX)}"
    average = "average: " if name.startswith(AVERAGE_PREFIX) else ""
    plain_name = name.removeprefix(AVERAGE_PREFIX)
    if plain_name == PAIRS_ACCURACY:
        return f"{average}minimal pairs" if average else "Minimal pairs"
    for score, title in _TEXT_TITLES.items():
        if plain_name.startswith(TEXT_PREFIX) and plain_name.endswith(f"_{score}"):
            text = plain_name.removeprefix(TEXT_PREFIX).removesuffix(f"_{score}")
            return f"{average}{text}: {title}"
    return {**_TITLES, **SPEED}.get(name, name.replace("_", " ").capitalize())


def format_axis(axis: Axes, name: str) -> None:
    """Set the title, the labels and the grid of a metric's panel."""
    from matplotlib.ticker import EngFormatter, FuncFormatter

    axis.set_title(plain(panel_title(name)), loc="left", fontsize=11, color=INK)
    axis.set_xlabel("step", fontsize=9, color=INK)
    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if name.endswith("accuracy"):
        show_percent(axis.yaxis)
    elif name == "tokens_per_second":
        axis.yaxis.set_major_formatter(EngFormatter(sep=""))
        axis.set_ylim(bottom=0)
    elif name == "learning_rate":
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_ylim(bottom=0)
    axis.tick_params(labelsize=9, colors=INK, length=0)
    axis.grid(color=_GRID, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[:].set_visible(False)


def points_of(entries: list[dict[str, Any]], kind: str, name: str) -> Points:
    """Return the steps and values of one metric.

    Missing values are skipped, and so are the speeds of intervals that include compilation.
    """
    chosen = [
        (entry["step"], entry[name])
        for entry in entries
        if entry["kind"] == kind
        and entry.get(name) is not None
        and not (name == "tokens_per_second" and entry["compiling"])
    ]
    steps, values = zip(*chosen, strict=True) if chosen else ((), ())
    return np.asarray(steps), np.asarray(values, dtype=float)


def smooth(points: Points) -> Points:
    """Return a moving average over about a thirtieth of the curve (less near the ends)."""
    steps, values = points
    half = len(values) // 60
    sums = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    first, last = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return steps, (sums[last] - sums[first]) / (last - first)
