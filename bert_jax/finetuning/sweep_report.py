"""One page about one sweep or several: pictures, tables and where they come from."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.finetuning.sweep_picture import draw_sweep
from bert_jax.finetuning.sweep_results import SweepResults
from bert_jax.finetuning.sweep_table import table, verdict
from bert_jax.local_paths import make_directory
from bert_jax.training.progress import format_duration, format_metric

REPORT_NAME = "report.html"
PICTURE_NAME = "report.png"

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --page: #fff; --line: #ddd; --best: #e8f0fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --page: #16181c; --line: #3a3d44; --best: #22324a; }
}
body { color: var(--ink); background: var(--page); margin: 2em auto; max-width: 72em;
  padding: 0 1em; font: 15px/1.5 system-ui, sans-serif; }
img { max-width: 100%; background: #fff; border-radius: 6px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25em 0.8em; text-align: right; border-bottom: 1px solid var(--line); }
tbody tr:first-child { background: var(--best); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 0.5em 0; overflow-wrap: anywhere; }
"""


def write_report(sweeps: Sequence[SweepResults], directory: Path) -> list[Path]:
    """Writes `report.html`, which needs no other file, and each sweep's picture beside it.

    A single sweep's picture is `report.png`, those of several `report-1-TASK.png` and so on.
    """
    make_directory(directory)
    pictures = [draw_sweep(each) for each in sweeps]
    parts = [_section(*each) for each in zip(sweeps, pictures, strict=True)]
    files = [directory / REPORT_NAME]
    write_file(files[0], _page([each.task for each in sweeps], parts))
    for number, (sweep, picture) in enumerate(zip(sweeps, pictures, strict=True), start=1):
        name = re.sub(r"[^\w.-]+", "-", sweep.task)
        files.append(
            directory / (PICTURE_NAME if len(sweeps) == 1 else f"report-{number}-{name}.png")
        )
        write_file(files[-1], picture)
    return files


def _page(tasks: Sequence[str], sections: Sequence[str]) -> str:
    title = f"Fine-tuning sweep: {escape(', '.join(tasks))}"
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>',
            '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
            f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            *sections,
            "</body>\n</html>\n",
        ]
    )


def _section(results: SweepResults, picture: bytes) -> str:
    found, encoded = verdict(results), base64.b64encode(picture).decode()
    missing = results.planned - len(results.runs)
    unfinished = f"<p>{missing} of {results.planned} runs are still to come.</p>" if missing else ""
    task = escape(results.task)
    return "\n".join(
        [
            f"<section>\n<h2>{task}</h2>\n{unfinished}",
            "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in found) + "\n</ul>",
            f'<p><img alt="{task}: score against learning rate" '
            f'src="data:image/png;base64,{encoded}"/></p>',
            f'<div class="wide">{_table(table(results))}</div>',
            _provenance(results),
            "</section>",
        ]
    )


def _table(rows: list[list[str]]) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "\n".join(cells(row, "td") for row in rows[1:])
    return f"<table>\n<thead>{cells(rows[0], 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _provenance(results: SweepResults) -> str:
    origin = results.provenance
    seconds = format_duration(sum(run.seconds for run in results.runs))
    facts = {
        "Scores": "mean ± sample standard deviation over seeds, of the best evaluation of each run "
        "on the validation set; degenerate runs end no better than what can be had "
        "without reading the text "
        f"({results.chance_metric} {format_metric(results.chance_metric, results.chance)}), or "
        "diverged and count in no mean",
        "Examples learned from": f"{results.num_examples:,}",
        "Train steps took": f"{seconds} in all",
        "Date": origin.date,
        "Hardware": origin.hardware,
        "Versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
        "Command": origin.command,
    }
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"
