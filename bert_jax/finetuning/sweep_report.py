"""Report sweeps as an HTML page with plots and tables."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.finetuning.sweep_plot import draw_sweep
from bert_jax.finetuning.sweep_results import SweepResults, read_results
from bert_jax.finetuning.sweep_tables import chance_text, examples_text, tables, verdict
from bert_jax.local_paths import make_directory
from bert_jax.runs.outputs import check_output
from bert_jax.training.reports import format_duration

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
    """Write a self-contained `report.html` and each sweep's plot, and return the files.

    A single sweep's plot is `report.png`; the plots for multiple sweeps are `report-1-TASK.png` and
    so on.
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


def combine_reports(
    directories: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> tuple[list[SweepResults], list[Path]]:
    """Write a single report on one or more sweeps, finished or not.

    Args:
      directories: the sweeps' output directories.
      output: the directory to write to; for a single sweep, it may be that sweep's own directory.

    Returns:
      The sweeps' results, and the paths of the report's files.

    Raises:
      ValueError: a directory has no results, or `output` already holds something else.
    """
    output = Path(output)
    own = [output.resolve()] == [Path(directory).resolve() for directory in directories]
    check_output(output, "--output", may_be=["sweep"] if own else [])
    sweeps = [read_results(Path(directory)) for directory in directories]
    return sweeps, write_report(sweeps, output)


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
    lines, encoded = verdict(results), base64.b64encode(picture).decode()
    missing = results.planned - len(results.runs)
    unfinished = f"<p>{missing} of {results.planned} runs have not finished.</p>" if missing else ""
    task = escape(results.task)
    return "\n".join(
        [
            f"<section>\n<h2>{task}</h2>\n{unfinished}",
            "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>",
            f'<p><img alt="{task}: score against learning rate" '
            f'src="data:image/png;base64,{encoded}"/></p>',
            *(_titled(title, rows) for title, rows in tables(results).items()),
            _provenance(results),
            "</section>",
        ]
    )


def _titled(title: str, rows: list[list[str]]) -> str:
    heading = f"<h3>{escape(title.capitalize())}</h3>\n" if title else ""
    return f'{heading}<div class="wide">{_table(rows)}</div>'


def _table(rows: list[list[str]]) -> str:
    def cells(row: list[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) + "</tr>"

    body = "\n".join(cells(row, "td") for row in rows[1:])
    return f"<table>\n<thead>{cells(rows[0], 'th')}</thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _provenance(results: SweepResults) -> str:
    origin = results.provenance
    seconds = format_duration(sum(run.seconds for run in results.runs))
    facts = {
        "Scores": "mean ± sample standard deviation, over seeds, of each run's best evaluation on "
        "the validation set. Degenerate runs ended no better than is possible without reading the "
        f"text ({chance_text(results)}), or diverged. The means exclude runs that diverged",
        "Training examples": examples_text(results),
        "Duration of all train steps": seconds,
        "Date": origin.date,
        "Hardware": origin.hardware,
        "Versions": ", ".join(f"{name} {version}" for name, version in origin.versions.items()),
        "Command": origin.command,
    }
    if results.variants:
        facts["Train time"] = (
            "train steps of the variant's fastest run with this batch size and number of epochs; "
            "the first run also compiles the programs"
        )
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(fact)}</dd>" for name, fact in facts.items())
    return "<dl>\n" + "\n".join(pairs) + "\n</dl>"
