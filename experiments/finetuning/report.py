"""The table and the pictures, from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

SIDES = {"pretrained": "#3b6fb6", "from_scratch": "#d9622b"}
BASELINES = {"plain": "bag of words", "paired": "bag of pairs"}
_INK = "#333333"
_STYLES = ("--", "-.", ":")


def table(results: dict[str, dict]) -> Iterator[str]:
    """Markdown: mean and standard deviation over seeds, in hundredths."""
    yield (
        "| task | metric | pretrained | from scratch | ahead by | bag of words | ahead by | "
        "bag of pairs | ahead by | chance | rates, epochs, dtype |"
    )
    yield "|" + "---|" * 11
    for name, result in results.items():
        means = {side: statistics.fmean(result[side]["scores"]) for side in SIDES}
        cells = [_spread(result["pretrained"]), _spread(result["from_scratch"])]
        cells += [f"{100 * (means['pretrained'] - means['from_scratch']):+.1f}"]
        for kind in BASELINES:
            score = result["baselines"].get(kind)
            ahead = "" if score is None else f"{100 * (means['pretrained'] - score):+.1f}"
            cells += ["" if score is None else f"{100 * score:.1f}", ahead]
        cells += [f"{100 * result['chance']:.1f}"]
        settings = result["settings"]
        rates = " or ".join(f"{rate:g}" for rate in settings["learning_rates"])
        cells += [f"{rates}, {settings['epochs']}, {settings['dtype']}"]
        yield f"| {name} | {result['metric']} | {' | '.join(cells)} |"


def draw(name: str, result: dict, file: Path) -> None:
    """One task: every seed as a dot, the means, the baseline and chance as lines."""
    figure = Figure(figsize=(5.2, 3.6), dpi=110, layout="constrained")
    axis = figure.subplots()
    for place, (side, colour) in enumerate(SIDES.items()):
        scores = result[side]["scores"]
        spread = [place + 0.06 * (n - (len(scores) - 1) / 2) for n in range(len(scores))]
        axis.plot(spread, scores, "o", color=colour, alpha=0.7)
        mean = statistics.fmean(scores)
        axis.plot([place - 0.25, place + 0.25], [mean, mean], color=colour, linewidth=2)
        axis.annotate(f"{100 * mean:.1f}", (place + 0.28, mean), va="center", color=colour)
    lines = [(BASELINES[kind], score) for kind, score in result["baselines"].items()]
    for (label, score), style in zip([*lines, ("chance", result["chance"])], _STYLES, strict=False):
        axis.axhline(score, linestyle=style, color=_INK, linewidth=1, label=label)
    axis.set_xticks(range(len(SIDES)), [side.replace("_", " ") for side in SIDES])
    axis.set_xlim(-0.6, len(SIDES) - 0.3)
    axis.set_ylabel(result["metric"])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    axis.legend(frameon=False, fontsize=8)
    axis.set_title(f"{name}, {len(result['pretrained']['scores'])} seeds", color=_INK)
    figure.savefig(file)


def _spread(side: dict) -> str:
    scores = [100 * score for score in side["scores"]]
    mean = f"{statistics.fmean(scores):.1f}"
    return f"{mean} ± {statistics.stdev(scores):.1f}" if len(scores) > 1 else mean
