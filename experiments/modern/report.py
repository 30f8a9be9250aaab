"""Turn the results into a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

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


def steps_to(target: float, curve: Sequence[Sequence[float]]) -> float | None:
    """Return the step at which a loss curve first reaches a target; None if it never does.

    Between two evaluations, the loss is interpolated linearly.

    Args:
      target: the loss.
      curve: the step and the loss of each evaluation.
    """
    before: Sequence[float] | None = None
    for step, loss in curve:
        if loss <= target:
            if before is None:
                return step
            return before[0] + (before[1] - target) / (before[1] - loss) * (step - before[0])
        before = (step, loss)
    return None


def with_speedups(variants: dict[str, Any]) -> dict[str, Any]:
    """Add to each run's results the step at which it reaches the mean final loss of BERT's runs.

    The step is also stored as a fraction of the number of steps in BERT's runs.
    """
    references = list(variants.get("bert", {"runs": {}})["runs"].values())
    if not references or any(run["loss"] is None for run in references):
        return variants
    target = statistics.fmean(run["loss"] for run in references)
    for variant in variants.values():
        for run in variant["runs"].values():
            step = steps_to(target, run["curve"])
            share = None if step is None else step / references[0]["steps"]
            run |= {"steps_to_bert": step, "share_of_bert": share}
    return variants


def table(variants: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with means and standard deviations over the seeds."""
    header = ["recipe", "parameters", "learning rate", "steps", "tokens", "FLOPs", "seconds"]
    header += ["held-out loss", "steps to BERT's loss", *_SCORES.values()]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for variant in variants.values():
        runs = list(variant["runs"].values())
        first = runs[0]
        cells = [variant["title"], f"{first['parameters'] / 1e6:.2f} M"]
        cells += [f"{first['learning_rate']:g}", f"{first['steps']:,}"]
        cells += [f"{first['tokens'] / 1e6:.1f} M", f"{first['flops']:.3g}"]
        cells += [f"{statistics.fmean(run['seconds'] for run in runs):.0f}"]
        cells += [_losses(runs), _steps(runs)]
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
    colors = dict(zip(variants, _COLORS, strict=False))
    for name, variant in variants.items():
        label: str | None = variant["title"]
        for run in (run for run in variant["runs"].values() if run["curve"]):
            per_step = run["flops"] / run["steps"]
            steps, losses = zip(*run["curve"], strict=True)
            flops = [step * per_step for step in steps]
            curves.plot(flops, losses, color=colors[name], linewidth=1.3, label=label)
            label = None
    curves.set_xlabel("model FLOPs")
    curves.set_ylabel("held-out masked-LM loss, nats")
    curves.grid(alpha=0.3)
    curves.legend(frameon=False, ncols=2)
    for column, (score, label) in enumerate(_SCORES.items()):
        axis = figure.add_subplot(grid[1, column])
        _dots(axis, variants, score, label, colors)
        axis.tick_params(axis="y", labelleft=column == 0)
    figure.savefig(file)


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


def _steps(runs: Sequence[dict[str, Any]]) -> str:
    if "steps_to_bert" not in runs[0]:
        return ""
    reached = [run for run in runs if run["steps_to_bert"] is not None]
    if not reached:
        return "not reached"
    text = f"{statistics.fmean(run['steps_to_bert'] for run in reached):,.0f}"
    text += f" ({statistics.fmean(run['share_of_bert'] for run in reached):.0%})"
    return text + (f", {len(reached)} of {len(runs)} runs" if len(reached) < len(runs) else "")


def _losses(runs: Sequence[dict[str, Any]]) -> str:
    losses = [run["loss"] for run in runs]
    diverged = losses.count(None)
    return f"{_spread(losses, 3)} ({diverged} diverged)" if diverged else _spread(losses, 3)
