"""Turn the results into a table and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

_INK = "#333333"
_COLOURS = {"tokens": "#3b6fb6", "flops": "#d9622b", "": "#888888"}
_PAIRS = ("nsp_accuracy", "sop_accuracy")
_MARKS = {"tokens": "o", "flops": "s", "": "x"}
_SHIFTS = {"tokens": -0.13, "flops": 0.13, "": 0.0}


def table(runs: dict[str, dict]) -> Iterator[str]:
    """Yield the lines of the Markdown table, with losses in nats, and scores as mean ± std in %."""
    tasks = next(iter(runs.values()))["tasks"]
    names = [f"{name}, {task['metric']}" for name, task in tasks.items()]
    header = ["model", "equal", "parameters", "tokens", "FLOPs"]
    header += ["held-out MLM loss", "accuracy", "loss on its own rows", "pair accuracy", *names]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "---|" * len(header)
    for run in runs.values():
        cells = [run["title"], run["budget"].replace("flops", "FLOPs")]
        cells += [f"{run['parameters'] / 1e6:.2f} M", *_pretraining(run)]
        cells += [_spread(task) for task in run["tasks"].values()]
        yield "| " + " | ".join(cells) + " |"


def _pretraining(run: dict) -> list[str]:
    if "held_out" not in run:
        return [""] * 6
    own, probe = run["held_out"], run["probe"]
    pairs = [value for name, value in own.items() if name in _PAIRS]
    return [
        *(f"{run['tokens'] / 1e6:.1f} M", f"{run['flops']:.3g}", f"{probe['mlm_loss']:.3f}"),
        *(f"{100 * probe['mlm_accuracy']:.1f}%", f"{own['mlm_loss']:.3f}"),
        f"{100 * pairs[0]:.1f}%" if pairs else "",
    ]


def draw(runs: dict[str, dict], file: Path) -> None:
    """Plot the held-out loss and the task scores: one row per model, and one color per budget."""
    titles = list(dict.fromkeys(run["title"] for run in runs.values()))
    tasks = list(next(iter(runs.values()))["tasks"])
    size = (3.2 + 2.9 * (1 + len(tasks)), 1.3 + 0.5 * len(titles))
    figure = Figure(figsize=size, dpi=110, layout="constrained")
    axes = figure.subplots(1, 1 + len(tasks), sharey=True)
    for run in runs.values():
        place = titles.index(run["title"]) + _SHIFTS[run["budget"]]
        style = {"color": _COLOURS[run["budget"]], "marker": _MARKS[run["budget"]]}
        if "probe" in run:
            axes[0].plot([run["probe"]["mlm_loss"]], [place], linestyle="", **style)
        for axis, task in zip(axes[1:], tasks, strict=True):
            scores = [100 * score for score in run["tasks"][task]["scores"]]
            axis.plot(scores, [place] * len(scores), linestyle="", alpha=0.45, **style)
            if scores:
                axis.plot([statistics.fmean(scores)], [place], "|", color=_INK, markersize=12)
    _name(axes[0], "held-out masked-LM loss, nats\n(left is better)")
    for axis, task in zip(axes[1:], tasks, strict=True):
        metric = next(iter(runs.values()))["tasks"][task]["metric"]
        _name(axis, f"{task}, {metric}\n(right is better)")
    axes[0].set_yticks(range(len(titles)), titles)
    axes[0].invert_yaxis()
    for budget, label in (("tokens", "equal tokens"), ("flops", "equal FLOPs")):
        axes[0].plot([], [], _MARKS[budget], color=_COLOURS[budget], label=label)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(file)


def _name(axis: Axes, label: str) -> None:
    axis.set_xlabel(label, color=_INK)
    axis.grid(axis="x", alpha=0.3)


def _spread(task: dict) -> str:
    hundredths = [100 * score for score in task["scores"]]
    text = f"{statistics.fmean(hundredths):.1f}" if hundredths else ""
    text += f" ± {statistics.stdev(hundredths):.1f}" if len(hundredths) > 1 else ""
    return f"{text} ({task['diverged']} diverged)".strip() if task["diverged"] else text
