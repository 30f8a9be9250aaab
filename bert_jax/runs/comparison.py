"""Compare the logs and the configs of several runs, as tables, a plot and a web page."""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_jax.corpus.workspace import directory_kind
from bert_jax.html_pages import check_page_path, html_page, html_table
from bert_jax.json_files import read_json_object
from bert_jax.local_paths import naming_urls, shown
from bert_jax.plots import new_figure, plain, png_of
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.views import local_run
from bert_jax.storage.uploads import write_json, write_result
from bert_jax.training.curves import INK, SPEED, format_axis, panel_names, points_of, smooth
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.reports import format_metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = list[list[str]]

_MAX_RUNS = 10  # Matplotlib's default colors
_CHANGED = re.compile(r"config-until-(\d+)\.json")
_MISSING = "-"
_PER_RUN = {"work_dir"}  # These keys always differ.


@dataclass(frozen=True)
class LoggedRun:
    """The log and the config of a run.

    Attributes:
      name: a name that distinguishes the run from the other compared runs.
      work_dir: the run's work directory.
      entries: the entries of its log, in the order in which they were written.
      config: the values of its config, keyed by their dotted names.
      changed_at: the steps at which the run was resumed with a different config.
    """

    name: str
    work_dir: Path
    entries: list[dict[str, Any]]
    config: Mapping[str, Any]
    changed_at: tuple[int, ...] = ()

    @property
    def last_step(self) -> int:
        """The step of the last entry in the log."""
        return max(int(entry["step"]) for entry in self.entries)

    def last(self, kind: str, name: str) -> tuple[int, float] | None:
        """Return the last value of a metric and its step, or None if there is none."""
        steps, values = points_of(self.entries, kind, name)
        return (int(steps[-1]), float(values[-1])) if len(steps) else None


@dataclass(frozen=True)
class RunComparison:
    """Several runs side by side; `str()` formats the tables.

    Attributes:
      runs: the runs.
    """

    runs: Sequence[LoggedRun]

    @property
    def metrics(self) -> list[str]:
        """The metrics that at least one run has logged, in the order of their panels."""
        return panel_names([entry for run in self.runs for entry in run.entries])

    def differing_keys(self) -> Rows:
        """Return a row of texts for each config key that differs: the key, and each run's value."""
        keys = {key for run in self.runs for key in run.config} - _PER_RUN
        values = {key: [_text(run.config, key) for run in self.runs] for key in sorted(keys)}
        return [[key, *row] for key, row in values.items() if len(set(row)) > 1]

    def last_values(self) -> Rows:
        """Return a row of texts for each metric: its name, and its last value in each run.

        Values on held-out data are preferred. If only some of the runs have such a value, the
        values of the other runs are marked as training values. If a value is not from the run's
        last step, its step is appended.
        """
        rows = [["last step", *(f"{run.last_step:,}" for run in self.runs)]]
        for name in self.metrics:
            if name not in SPEED:
                mark = any(run.last("evaluation", name) for run in self.runs)
                rows.append([name, *(_last(run, name, mark) for run in self.runs)])
        return rows

    def notes(self) -> list[str]:
        """Return a sentence for each run whose config changed when it was resumed."""
        return [
            f"{run.name}: its config changed at step "
            f"{', '.join(f'{step:,}' for step in run.changed_at)}; the table shows the newest one "
            f"(config-until-STEP.json in its work directory has the earlier ones)."
            for run in self.runs
            if run.changed_at
        ]

    def __str__(self) -> str:
        names = [run.name for run in self.runs]
        keys = self.differing_keys()
        parts = [_aligned([["", *names], *self.last_values()])]
        parts.append(_aligned([["config key", *names], *keys]) if keys else "the configs are equal")
        return "\n\n".join(parts + (["\n".join(self.notes())] if self.notes() else []))

    def figure(self) -> Figure:
        """Return a plot with a panel per metric, in which each run has its own color."""
        names = self.metrics
        rows = math.ceil(len(names) / 2)
        figure = new_figure(9.6, 2.9 * rows + 0.9)
        axes = figure.subplots(rows, 2, squeeze=False).flatten()
        for axis, name in zip(axes, names, strict=False):
            for number, run in enumerate(self.runs):
                train = points_of(run.entries, "train", name)
                held_out = points_of(run.entries, "evaluation", name)
                color = f"C{number}"
                if len(train[0]):
                    faint = len(held_out[0]) > 0
                    curve = train if name in SPEED else smooth(train)
                    axis.plot(*curve, color=color, linewidth=1.2, alpha=0.45 if faint else 1.0)
                if len(held_out[0]):
                    axis.plot(*held_out, color=color, linewidth=1.8, marker="o", markersize=3)
            format_axis(axis, name)
        for axis in axes[len(names) :]:
            axis.set_axis_off()
        for number, run in enumerate(self.runs):
            axes[0].plot([], [], color=f"C{number}", linewidth=2.5, label=plain(run.name))
        figure.legend(loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)
        return figure

    def page(self, title: str = "Comparison of runs") -> str:
        """Return a page with the tables and the plot, which loads nothing from the network."""
        names = [run.name for run in self.runs]
        image = base64.b64encode(png_of(self.figure())).decode()
        keys = self.differing_keys()
        table = html_table([["", *names], *keys]) if keys else "<p>The configs are equal.</p>"
        sections = [
            "<p>Lines with markers are measured on held-out data; faint or plain lines are "
            "smoothed measurements during training.</p>",
            f'<img alt="Learning curves of {escape(", ".join(names))}" '
            f'src="data:image/png;base64,{image}"/>',
            f"<h2>Last values</h2>\n{_wide(html_table([['', *names], *self.last_values()]))}",
            f"<h2>Config keys that differ</h2>\n{_wide(table)}",
            *(f"<p>{escape(note)}</p>" for note in self.notes()),
        ]
        return html_page(title, sections)

    def save_page(self, path: str | os.PathLike[str]) -> None:
        """Write the page to an HTML file, atomically.

        Raises:
          ValueError: the file name does not end in .html.
        """
        check_page_path(Path(path))
        write_result(Path(path), self.page())

    def plot(self, path: str | Path) -> None:
        """Write the plot to a PNG image."""
        write_result(path, png_of(self.figure()))

    def save(self, path: str | Path) -> None:
        """Write the tables to a JSON file."""
        tables = {"last_values": self.last_values(), "differing_keys": self.differing_keys()}
        write_json(path, {"runs": [shown(run.work_dir) for run in self.runs], **tables})


@naming_urls()
def compare_runs(work_dirs: Sequence[str | os.PathLike[str]]) -> RunComparison:
    """Read the logs and configs of runs, which may still be in progress.

    Args:
      work_dirs: the work directories of pretraining or fine-tuning runs.

    Raises:
      ValueError: there are fewer than two or too many directories, a directory is given twice, or a
        directory is missing, is not a run's work directory, or has a damaged log.
    """
    if not 2 <= len(work_dirs) <= _MAX_RUNS:
        number = len(work_dirs)
        raise ValueError(
            f"{number} work director{'y' if number == 1 else 'ies'}: expected 2 to {_MAX_RUNS}. "
            "Specify one for each run."
        )
    paths = [local_run(path) for path in work_dirs]
    resolved = [path.resolve() for path in paths]
    for number, path in enumerate(resolved):
        if path in resolved[:number]:
            raise ValueError(
                f"{paths[number]}: the same run is specified twice. Remove one of the two."
            )
    for path in paths:
        _check_run(path)
    names = [path.name for path in resolved]
    return RunComparison(
        [
            _read(path, name if names.count(name) == 1 else str(path))
            for path, name in zip(paths, names, strict=True)
        ]
    )


def _check_run(path: Path) -> None:
    if not path.is_dir():
        problem = "it is a file" if path.exists() else "there is no such directory"
        raise ValueError(f"{path}: {problem}. Specify the work directory of a run.")
    kind = directory_kind(path)
    if (path / LOG_NAME).is_file() and (path / RESOLVED_NAME).is_file() and kind != "sweep":
        return
    if kind == "work directory":
        raise ValueError(
            f"{path}: contains no {LOG_NAME} or no {RESOLVED_NAME}. The model was imported, or the "
            "run has not begun to train. Specify a run that has."
        )
    found = f"this is a {kind}" if kind else "this is not a work directory"
    hint = f"; its runs are in {path / 'runs'}" if kind == "sweep" else ""
    raise ValueError(f"{path}: {found}{hint}. Specify directories that pretrain or finetune wrote.")


def _read(path: Path, name: str) -> LoggedRun:
    entries = read_metrics(path / LOG_NAME)
    if not entries:
        raise ValueError(f"{path / LOG_NAME}: the log is still empty. Wait for the first report.")
    config = flattened(read_json_object(path / RESOLVED_NAME))
    matches = (_CHANGED.fullmatch(file.name) for file in path.iterdir())
    changed = sorted(int(match[1]) for match in matches if match)
    return LoggedRun(name, path, entries, config, tuple(changed))


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values as one dict with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _text(config: Mapping[str, Any], key: str) -> str:
    if key not in config:
        return _MISSING
    value = config[key]
    return value if isinstance(value, str) and value else json.dumps(value)


def _last(run: LoggedRun, name: str, mark_training: bool) -> str:
    """Return the last value of a metric as text, preferably on held-out data.

    Args:
      run: the run.
      name: the metric.
      mark_training: whether to mark a value that was measured during training.
    """
    held_out = run.last("evaluation", name)
    found = held_out or run.last("train", name)
    if found is None:
        return _MISSING
    step, value = found
    remarks = ["training"] if mark_training and not held_out else []
    remarks += [f"step {step:,}"] if step != run.last_step else []
    return format_metric(name, value) + (f" ({', '.join(remarks)})" if remarks else "")


def _aligned(rows: Rows) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)


def _wide(table: str) -> str:
    return f'<div class="wide">{table}</div>'
