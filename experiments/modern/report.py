"""Turn the results into a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from variants import SHORTER

_INK = "#333333"
_COLORS = (
    *("#222222", "#3b6fb6", "#3f9b6c", "#b8860b", "#d9622b"),
    *("#8a63b8", "#c2528b", "#b22222"),
)
_SCORES = {
    "BLiMP": "BLiMP, accuracy",
    "SST-2": "SST-2, accuracy",
    "STS-B": "STS-B, Spearman correlation",
}
# The variants that differ only in the number of steps with Muon.
_MUON = ("muon", *(variant.name for variant in SHORTER))


def step_reduction(variants: dict[str, Any]) -> dict[str, Any] | None:
    """Return how many of its steps Muon needs for the final loss of BERT's recipe.

    The loss of Muon's runs is interpolated linearly between the lengths that were trained; each of
    these runs has its own complete schedule. All losses are means over the seeds.

    Args:
      variants: the results of each variant, keyed by its name.

    Returns:
      The loss of BERT's recipe, the number of steps and the loss of Muon's runs, and the number of
      steps at which Muon reaches the loss of BERT's recipe, also as a fraction of the steps of
      BERT's recipe. `bound` is "at most" if even the shortest runs are better than BERT's recipe,
      and "more than" if not even the longest ones are. None if BERT or Muon have no finite losses.
    """
    target, steps_of_bert = _mean_loss(variants.get("bert"))
    points = [_mean_loss(variants.get(name)) for name in _MUON]
    losses = sorted((steps, loss) for loss, steps in points if loss is not None)
    if target is None or not losses:
        return None
    reached, bound = losses[-1][0], "more than"
    before: tuple[int, float] | None = None
    for steps, loss in losses:
        if loss <= target:
            reached, bound = steps, "at most"
            if before is not None:
                part = (before[1] - target) / (before[1] - loss)
                reached, bound = round(before[0] + part * (steps - before[0])), ""
            break
        before = (steps, loss)
    return {
        "bert_loss": target,
        "muon_losses": dict(losses),
        "bound": bound,
        "steps": reached,
        "share": reached / steps_of_bert,
    }


def _mean_loss(variant: dict[str, Any] | None) -> tuple[float | None, int]:
    """Return the mean final loss and the number of steps of a variant's runs."""
    runs = list(variant["runs"].values()) if variant else []
    losses = [run["loss"] for run in runs]
    if not losses or None in losses:
        return None, 0
    return statistics.fmean(losses), runs[0]["steps"]


def reduction_line(reduction: dict[str, Any]) -> str:
    """Return a sentence on Muon's step reduction."""
    steps = f"{reduction['bound']} {reduction['steps']:,}".strip()
    return (
        f"Muon reaches the loss of BERT's recipe, {reduction['bert_loss']:.3f}, with {steps} steps "
        f"({reduction['share']:.0%} of BERT's)."
    )


def table(variants: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with means and standard deviations over the seeds."""
    header = ["recipe", "parameters", "learning rate", "steps", "tokens", "FLOPs", "seconds"]
    header += ["held-out loss", *_SCORES.values()]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for variant in variants.values():
        runs = list(variant["runs"].values())
        first = runs[0]
        cells = [variant["title"], f"{first['parameters'] / 1e6:.2f} M"]
        cells += [f"{first['learning_rate']:g}", f"{first['steps']:,}"]
        cells += [f"{first['tokens'] / 1e6:.1f} M", f"{first['flops']:.3g}"]
        cells += [f"{statistics.fmean(run['seconds'] for run in runs):.0f}"]
        cells += [_losses(runs)]
        scores = [[_percent(run, name) for run in runs] for name in _SCORES]
        cells += [_spread(each, 1) for each in scores]
        yield "| " + " | ".join(cells) + " |"


def tuning_table(tuning: dict[str, dict[str, float | None]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with the loss at each learning rate."""
    rates = list(next(iter(tuning.values())))
    yield "| optimizer | " + " | ".join(rates) + " |"
    yield "|" + "---|" * (len(rates) + 1)
    for optimizer, losses in tuning.items():
        cells = ["diverged" if loss is None else f"{loss:.3f}" for loss in losses.values()]
        yield f"| {optimizer} | " + " | ".join(cells) + " |"


def draw(variants: dict[str, Any], file: Path) -> None:
    """Plot the held-out loss against the FLOPs, and the scores of every seed as dots."""
    figure = Figure(figsize=(13, 8.5), dpi=110, layout="constrained")
    grid = figure.add_gridspec(2, len(_SCORES))
    curves = figure.add_subplot(grid[0, :])
    full = [name for name, variant in variants.items() if variant["budget"] == 1]
    colors = dict(zip(full, _COLORS, strict=False))
    for name, variant in variants.items():
        shown = {"color": colors.get(name, colors.get("muon", _INK))}
        shown["linestyle"] = "-" if name in full else ":"
        label: str | None = variant["title"]
        for run in variant["runs"].values():
            for piece in _pieces(run):
                curves.plot(*piece, linewidth=1.3, label=label, **shown)
                label = None
    curves.set_xlabel("model FLOPs (each curve has a gap where the rows become longer)")
    curves.set_ylabel("held-out masked-LM loss, nats")
    curves.grid(alpha=0.3)
    curves.legend(frameon=False, ncols=2)
    for column, (score, label) in enumerate(_SCORES.items()):
        axis = figure.add_subplot(grid[1, column])
        _dots(axis, {name: variants[name] for name in full}, score, label, colors)
        axis.tick_params(axis="y", labelleft=column == 0)
    figure.savefig(file)


def _pieces(run: dict[str, Any]) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the FLOPs and the losses of a run's evaluations in each phase."""
    first, _ = run["phase_steps"]
    short, long = run["phase_flops"]
    in_first = [(step * short, loss) for step, loss in run["curve"] if step <= first]
    in_second = [
        (first * short + (step - first) * long, loss) for step, loss in run["curve"] if step > first
    ]
    for piece in (in_first, in_second):
        yield [flops for flops, _ in piece], [loss for _, loss in piece]


def _dots(
    axis: Axes, variants: dict[str, Any], score: str, label: str, colors: dict[str, str]
) -> None:
    """Plot a score: a dot for each seed, a line for each mean, and a dotted line at BERT's mean."""
    for row, (name, variant) in enumerate(variants.items()):
        values = [_percent(run, score) for run in variant["runs"].values()]
        available = [value for value in values if value is not None]
        if not available:
            continue
        mean = statistics.fmean(available)
        axis.plot(
            available, [row] * len(available), "o", color=colors[name], markersize=6, alpha=0.8
        )
        axis.plot([mean, mean], [row - 0.3, row + 0.3], color=colors[name], linewidth=2)
        if name == "bert":
            axis.axvline(mean, color=_INK, linewidth=0.8, linestyle=":")
    axis.set_yticks(range(len(variants)), [variant["title"] for variant in variants.values()])
    axis.set_ylim(len(variants) - 0.5, -0.5)
    axis.set_xlabel(label + (", %" if score != "STS-B" else " × 100"), color=_INK)
    axis.grid(axis="x", alpha=0.3)


def _percent(run: dict[str, Any], name: str) -> float | None:
    score = run["scores"].get(name, {}).get("score")
    return None if score is None else 100 * score


def _spread(values: Sequence[float | None], digits: int) -> str:
    available = [value for value in values if value is not None]
    text = f"{statistics.fmean(available):.{digits}f}" if available else ""
    if len(available) > 1:
        text += f" ± {statistics.stdev(available):.{digits}f}"
    return text


def _losses(runs: Sequence[dict[str, Any]]) -> str:
    losses = [run["loss"] for run in runs]
    diverged = losses.count(None)
    return f"{_spread(losses, 3)} ({diverged} diverged)" if diverged else _spread(losses, 3)
