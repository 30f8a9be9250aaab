"""Turn the results into a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from step_reduction import held_out_loss
from variants import VARIANTS, WITH_MUON

_INK = "#333333"
_COLORS = (
    *("#222222", "#3b6fb6", "#3f9b6c", "#b8860b", "#d9622b"),
    *("#8a63b8", "#c2528b", "#b22222", "#5f6b3a"),
)
_SCORES = {
    "BLiMP": "BLiMP accuracy, %",
    "SST-2": "SST-2 accuracy, %",
    "STS-B": "STS-B Spearman × 100",
}


def table(variants: dict[str, Any], lengths: Sequence[int]) -> Iterator[str]:
    """Yield the lines of a Markdown table, with means and standard deviations over the seeds."""
    header = ["recipe", "parameters", "learning rate", "steps", "tokens", "FLOPs"]
    header += ["FLOPs incl. Muon"]
    two_phases = len(lengths) == 2
    header += ["loss after phase 1"] if two_phases else []
    header += [f"held-out loss, rows of {length}" for length in lengths]
    header += ["next-sentence accuracy, %", *_SCORES.values()]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for variant in variants.values():
        runs = list(variant["runs"].values())
        first = runs[0]
        cells = [variant["title"], f"{first['parameters'] / 1e6:.2f} M"]
        cells += [f"{first['learning_rate']:g}", f"{first['steps']:,}"]
        cells += [f"{first['tokens'] / 1e6:.1f} M", f"{first['flops']:.3g}"]
        cells += [f"{first['flops'] + first['muon_flops']:.3g}"]
        cells += [_spread([_loss_after_phase_1(run) for run in runs], 3)] if two_phases else []
        cells += [_losses(runs, length) for length in lengths]
        cells += [_spread([_next_sentence_percent(run) for run in runs], 1)]
        scores = [[_percent(run, name) for run in runs] for name in _SCORES]
        cells += [_spread(each, 1) for each in scores]
        yield "| " + " | ".join(cells) + " |"


def tuning_table(tuning: dict[str, dict[str, float | None]]) -> Iterator[str]:
    """Yield the lines of a Markdown table with the loss of each recipe at each learning rate."""
    rates = sorted({rate for losses in tuning.values() for rate in losses}, key=float)
    yield "| recipe | " + " | ".join(rates) + " |"
    yield "|" + "---|" * (len(rates) + 1)
    for name, losses in tuning.items():
        text = {
            rate: "diverged" if loss is None else f"{loss:.3f}" for rate, loss in losses.items()
        }
        cells = [text.get(rate, "") for rate in rates]
        yield f"| {VARIANTS[name].title} | " + " | ".join(cells) + " |"


def draw(variants: dict[str, Any], file: Path) -> None:
    """Plot the held-out loss against the FLOPs, and the scores of every seed as dots."""
    figure = Figure(figsize=(13, 8.5), dpi=110, layout="constrained")
    grid = figure.add_gridspec(2, len(_SCORES))
    curves = figure.add_subplot(grid[0, :])
    full = [name for name, variant in variants.items() if variant["budget"] == 1]
    colors = dict(zip(full, _COLORS, strict=False))
    # Shorter runs have the color of the runs with the same recipe.
    colors |= {
        shorter.name: colors.get(longest.name, _INK)
        for longest, *others in WITH_MUON.values()
        for shorter in others
    }
    for name, variant in variants.items():
        style = "-" if name in full else "--" if variant["budget"] > 0.5 else ":"
        shown = {"color": colors[name], "linestyle": style}
        label: str | None = variant["title"]
        for run in variant["runs"].values():
            for piece in _pieces(run):
                curves.plot(*piece, linewidth=1.3, label=label, **shown)
                label = None
    curves.set_xlabel(
        "FLOPs, including Muon's matrix products (a curve has a gap where the rows become longer)"
    )
    curves.set_ylabel("held-out masked-LM loss, nats")
    curves.grid(alpha=0.3)
    curves.legend(frameon=False, ncols=2)
    for column, (score, label) in enumerate(_SCORES.items()):
        axis = figure.add_subplot(grid[1, column])
        _dots(axis, {name: variants[name] for name in full}, score, label, colors)
        axis.tick_params(axis="y", labelleft=column == 0)
    figure.savefig(file)


def _pieces(run: dict[str, Any]) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the FLOPs so far and the losses of a run's evaluations in each phase."""
    start, spent = 0, 0.0
    muon = run["muon_flops"] / run["steps"]
    for num_steps, model in zip(run["phase_steps"], run["phase_flops"], strict=True):
        flops = model + muon
        piece = [(step, loss) for step, loss in run["curve"] if start < step <= start + num_steps]
        yield [spent + (step - start) * flops for step, _ in piece], [loss for _, loss in piece]
        start, spent = start + num_steps, spent + num_steps * flops


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
    axis.set_xlabel(label, color=_INK)
    axis.grid(axis="x", alpha=0.3)


def _percent(run: dict[str, Any], name: str) -> float | None:
    """Return a run's score; for a task, the best score of all learning rates."""
    scores = [
        100 * result["score"]
        for stem, result in run["scores"].items()
        if (stem == name or stem.startswith(f"{name}-")) and result["score"] is not None
    ]
    return max(scores, default=None)


def _next_sentence_percent(run: dict[str, Any]) -> float | None:
    """Return a run's next-sentence accuracy; None if it diverged or did not record it."""
    accuracy: float | None = run.get("next_sentence_accuracy")
    return None if accuracy is None else 100 * accuracy


def _loss_after_phase_1(run: dict[str, Any]) -> float | None:
    """Return the loss of a run's last evaluation in the first phase.

    Return None if there is none, or if the run diverged before the first evaluation in the second
    phase.
    """
    (_, losses), (_, later) = _pieces(run)
    return losses[-1] if losses and later else None


def _spread(values: Sequence[float | None], digits: int) -> str:
    available = [value for value in values if value is not None]
    text = f"{statistics.fmean(available):.{digits}f}" if available else ""
    if len(available) > 1:
        text += f" ± {statistics.stdev(available):.{digits}f}"
    return text


def _losses(runs: Sequence[dict[str, Any]], length: int) -> str:
    text = _spread([held_out_loss(run, length) for run in runs], 3)
    diverged = sum(1 for run in runs if run["diverged"])
    return f"{text} ({diverged} diverged)".strip() if diverged else text
