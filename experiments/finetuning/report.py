"""Turn the results into tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

SIDES = {"pretrained": "#3b6fb6", "from_scratch": "#d9622b"}
_INK = "#333333"
_STYLES = ("--", "-.", "-", (0, (8, 3)))


def table(results: dict[str, dict]) -> Iterator[str]:
    """Yield the lines of the validation-set table, with means and standard deviations in %."""
    yield (
        "| task | metric | pretrained | from scratch | difference | "
        "without an encoder (difference) | without reading | training, dev examples | batch | "
        "learning rate, epoch: pretrained; scratch | runs at chance, diverged |"
    )
    yield "|" + "---|" * 11
    for name, result in results.items():
        settings = result["settings"]
        if missing := [side for side in SIDES if side not in result]:
            yield f"| {name} | {', '.join(missing)}: not measured yet |" + " |" * 9
            continue
        sides = [result[side] for side in SIDES]
        cells = [*_comparison(sides, result["baselines"])]
        cells += [", ".join(f"{count:,}" for count in result["examples"].values())]
        cells += [f"{settings['batch_size']}"]
        cells += [
            "; ".join(
                f"{side['learning_rate']:g}, {side['epoch']} of {settings['epochs']}"
                for side in sides
            )
        ]
        failed = [sum(side[kind] for side in sides) for kind in ("at_chance", "diverged")]
        cells += [", ".join(map(str, failed))]
        yield f"| {name} | {result['metric']} | {' | '.join(cells)} |"


def test_table(results: dict[str, dict]) -> Iterator[str]:
    """Yield the lines of the same table for the test sets on which both sides were scored."""
    both = {
        name: [result[side]["test"] for side in SIDES]
        for name, result in results.items()
        if all("test" in result.get(side, {}) for side in SIDES)
    }
    if both:
        yield (
            "| task, test set | metric | pretrained | from scratch | difference | "
            "without an encoder (difference) | without reading | examples |"
        )
        yield "|" + "---|" * 8
    for name, sides in both.items():
        metric, test = results[name]["metric"], results[name]["test"]
        cells = [*_comparison(sides, test["baselines"]), f"{test['examples']['validation']:,}"]
        yield f"| {name} | {metric} | {' | '.join(cells)} |"


def _comparison(sides: Sequence[dict], baselines: Mapping[str, float]) -> Iterator[str]:
    """Yield the cells that compare the pretrained side with the other side and the baselines."""
    yield from map(_spread, sides)
    means = [_mean(side) for side in sides]
    yield f"{100 * (means[0] - means[1]):+.1f}"
    yield "; ".join(
        f"{kind} {100 * score:.1f} ({100 * (means[0] - score):+.1f})"
        for kind, score in baselines.items()
    )
    yield f"{100 * sides[0]['chance']:.1f}"


def draw(name: str, result: dict, file: Path) -> None:
    """Plot one task's scores: seeds as dots; means, baselines and chance level as lines."""
    figure = Figure(figsize=(5.6, 3.6), dpi=110, layout="constrained")
    axis = figure.subplots()
    measured = {side: colour for side, colour in SIDES.items() if side in result}
    for place, (side, colour) in enumerate(measured.items()):
        scores = _scores(result[side])
        spread = [place + 0.06 * (n - (len(scores) - 1) / 2) for n in range(len(scores))]
        axis.plot(spread, scores, "o", color=colour, alpha=0.7)
        mean = _mean(result[side])
        axis.plot([place - 0.25, place + 0.25], [mean, mean], color=colour, linewidth=2)
        axis.annotate(f"{100 * mean:.1f}", (place + 0.28, mean), va="center", color=colour)
    assert len(result["baselines"]) <= len(_STYLES)
    for (label, score), style in zip(result["baselines"].items(), _STYLES, strict=False):
        axis.axhline(score, linestyle=style, color=_INK, linewidth=1, label=label)
    label = "without reading"
    chance = result[next(iter(measured))]["chance"]
    axis.axhline(chance, linestyle=":", color=_INK, linewidth=1, label=label)
    axis.set_xticks(range(len(measured)), [side.replace("_", " ") for side in measured])
    axis.set_xlim(-0.6, len(measured) - 0.3)
    axis.set_ylabel(result["metric"])
    axis.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=""))
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    axis.set_title(f"{name}, {result['settings']['seeds']} seeds", color=_INK)
    figure.savefig(file)


def _scores(side: dict) -> list[float]:
    """Return the scores at the chosen learning rate and epoch, without diverged seeds."""
    return side["scores"][side["metric"]]


def _mean(side: dict) -> float:
    return statistics.fmean(_scores(side))


def _spread(side: dict) -> str:
    scores, mean = _scores(side), f"{100 * _mean(side):.1f}"
    return f"{mean} ± {100 * statistics.stdev(scores):.1f}" if len(scores) > 1 else mean
