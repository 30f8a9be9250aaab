"""Probe every checkpoint of a run to see when attention heads start to follow relations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.interpretability.head_probe import (
    MIN_COUNT,
    SHADES,
    TOO_RARE,
    BestHead,
    HeadProbe,
    OnProgress,
    probe_heads,
)
from bert_jax.interpretability.notebook import Cell, Shaded, paragraph, picture, table
from bert_jax.interpretability.traced_text import COUNTED_FROM
from bert_jax.labeled_data.treebank import Treebank
from bert_jax.local_paths import naming_urls
from bert_jax.plots import new_figure, plain, png_of, show_percent
from bert_jax.runs.model_location import local_model
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, read_model
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.training.checkpoint_files import steps_in
from bert_jax.training.metrics_log import LOG_NAME, read_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NUM_DRAWN = 8
_LOSSES = ("mlm_loss", "loss")


@dataclass(frozen=True, eq=False)
class Emergence:
    """The accuracy of attention heads at every checkpoint of a run.

    Printing this object shows a table; Jupyter displays the table and a plot.

    Attributes:
      name: the name of the run.
      steps: the steps of the checkpoints, in ascending order.
      probes: the probe of each checkpoint.
      losses: a dict from step to held-out loss, from the run's log.
    """

    name: str
    steps: tuple[int, ...]
    probes: tuple[HeadProbe, ...] = field(repr=False)
    losses: dict[int, float] = field(repr=False)

    def heads(self, min_count: int = MIN_COUNT) -> list[BestHead]:
        """Return the best head of the last checkpoint for each frequent relation."""
        return self.probes[-1].best(min_count)

    def history(self, best: BestHead) -> list[float]:
        """Return the accuracy of a head for its relation at every checkpoint."""
        return [probe.accuracy_of(best) for probe in self.probes]

    def lines(self, min_count: int = MIN_COUNT) -> Iterator[str]:
        """Yield a table with a row for each relation and a column for each checkpoint."""
        heads = self.heads(min_count)
        width = max((len(best.relation) for best in heads), default=8)
        cells = "  ".join(f"{f'step {step:,}':>12}" for step in self.steps)
        yield f"{'relation':{width}}  {'head':>6}  {'baseline':>8}  {cells}"
        for best in heads:
            row = "  ".join(f"{accuracy:12.1%}" for accuracy in self.history(best))
            yield f"{best.relation:{width}}  {best.name:>6}  {best.offset_accuracy:8.1%}  {row}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        header = ["relation", "head", "baseline", *(f"step {step:,}" for step in self.steps)]
        rows: list[list[Cell]] = []
        for best in self.heads():
            cells = [
                Shaded(f"{accuracy:.1%}", 2 * (accuracy - best.offset_accuracy))
                for accuracy in self.history(best)
            ]
            rows.append([best.relation, best.name, f"{best.offset_accuracy:.1%}", *cells])
        if not rows:
            return paragraph(TOO_RARE)
        description = f"accuracies of attention heads at every checkpoint of {self.name}"
        image = picture(png_of(self._figure(MIN_COUNT)), description)
        return table(header, rows) + paragraph(SHADES) + image

    def to_json(self) -> dict[str, Any]:
        """Return all results as plain JSON values."""
        return {
            **COUNTED_FROM,
            "name": self.name,
            "losses": {str(step): loss for step, loss in self.losses.items()},
            "steps": {
                str(step): probe.to_json()
                for step, probe in zip(self.steps, self.probes, strict=True)
            },
        }

    def save(self, path: str | Path) -> None:
        """Write all values to a JSON file."""
        write_json(path, self.to_json())

    def plot(self, path: str | Path, min_count: int = MIN_COUNT) -> None:
        """Save a plot of the accuracies and the loss against the step as a PNG image.

        The plot shows the relations for which the best head beats the best fixed offset by the
        widest margin.
        """
        write_result(path, png_of(self._figure(min_count)))

    def _figure(self, min_count: int) -> Figure:
        figure = new_figure(9, 6)
        figure.suptitle(plain(self.name), fontsize=14, fontweight="bold")
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        gains = sorted(self.heads(min_count), key=lambda best: best.offset_accuracy - best.accuracy)
        for best in [best for best in gains if best.relation != "all"][:_NUM_DRAWN]:
            _draw(top, self.steps, self.history(best), best)
        show_percent(top.yaxis, decimals=0)
        top.set_ylabel("accuracy of the head\n(dotted: best fixed offset)")
        top.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9)
        if self.losses:
            bottom.plot(list(self.losses), list(self.losses.values()), color="#333333")
        bottom.set_ylabel("held-out loss")
        bottom.set_xlabel("step")
        return figure


def _draw(axis: Axes, steps: Sequence[int], accuracies: Sequence[float], best: BestHead) -> None:
    label = plain(f"{best.relation} ({best.name})")
    (line,) = axis.plot(steps, accuracies, marker="o", markersize=3, label=label)
    axis.axhline(best.offset_accuracy, color=line.get_color(), linestyle=":", linewidth=0.8)


@naming_urls()
def probe_checkpoints(
    work_dir: str | Path, treebank: Treebank, *, on_progress: OnProgress | None = None
) -> Emergence:
    """Probe the attention heads of every checkpoint that a run has kept.

    Args:
      work_dir: the work directory of a run that was trained with `checkpoint.keep_every`.
      treebank: the sentences.
      on_progress: called with a progress message after each sentence.

    Raises:
      ValueError: the run has kept fewer than two checkpoints, or `probe_heads` fails.
    """
    directory = local_model(work_dir)
    steps = checkpoint_steps(directory)

    def report(step: int) -> OnProgress | None:
        if on_progress is None:
            return None
        return lambda text: on_progress(f"step {step:,}: {text}")

    probes = [
        probe_heads(directory, treebank, step=step, on_progress=report(step)) for step in steps
    ]
    losses = held_out_losses(directory)
    return Emergence(directory.resolve().name, tuple(steps), tuple(probes), losses)


def checkpoint_steps(work_dir: Path) -> list[int]:
    """Return the steps of the checkpoints that a run has kept, in ascending order.

    Raises:
      ValueError: the directory is not a work directory, or the run has kept fewer than two
        checkpoints.
    """
    read_model(work_dir)  # raises an error if the directory is not a work directory
    steps = sorted(steps_in(work_dir / CHECKPOINTS_NAME))
    if len(steps) < 2:
        raise ValueError(
            f"{work_dir}: at least two checkpoints are needed, but the run has kept {len(steps)}. "
            "Train with checkpoint.keep_every, which keeps a checkpoint at regular intervals."
        )
    return steps


def held_out_losses(work_dir: Path) -> dict[int, float]:
    """Return a run's held-out loss at each evaluated step.

    This is the masked-LM loss or, if the run does not log it, the total loss.
    """
    log = work_dir / LOG_NAME
    entries = read_metrics(log) if log.is_file() else []
    evaluations = [entry for entry in entries if entry["kind"] == "evaluation"]
    name = next((name for name in _LOSSES if any(name in entry for entry in evaluations)), "")
    return {int(entry["step"]): float(entry[name]) for entry in evaluations if name in entry}
