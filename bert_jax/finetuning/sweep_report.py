"""Report sweeps as an HTML page with plots and tables."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Sequence
from html import escape

from bert_jax.finetuning.sweep_plot import draw_sweep
from bert_jax.finetuning.sweep_results import SweepResults, read_results
from bert_jax.finetuning.sweep_tables import chance_text, examples_text, tables, verdict
from bert_jax.html_pages import html_page, html_table
from bert_jax.runs.outputs import Kind, check_output, check_output_url
from bert_jax.storage.locations import absolute
from bert_jax.storage.uploads import write_result
from bert_jax.storage.urls import Location, ObjectUrl, parse_location
from bert_jax.training.reports import format_duration

REPORT_NAME = "report.html"
PICTURE_NAME = "report.png"

# The first row of each table is the best one.
_STYLE = "tbody tr:first-child { background: var(--mark); font-weight: 600; }\n"


def write_report(sweeps: Sequence[SweepResults], directory: Location) -> list[Location]:
    """Write a self-contained `report.html` and each sweep's plot, and return the files.

    A single sweep's plot is `report.png`; the plots for multiple sweeps are `report-1-TASK.png` and
    so on.
    """
    pictures = [draw_sweep(each) for each in sweeps]
    parts = [_section(*each) for each in zip(sweeps, pictures, strict=True)]
    files: list[Location] = [directory / REPORT_NAME]
    title = f"Fine-tuning sweep: {', '.join(each.task for each in sweeps)}"
    write_result(files[0], html_page(title, parts, _STYLE))
    for number, (sweep, picture) in enumerate(zip(sweeps, pictures, strict=True), start=1):
        name = re.sub(r"[^\w.-]+", "-", sweep.task)
        files.append(
            directory / (PICTURE_NAME if len(sweeps) == 1 else f"report-{number}-{name}.png")
        )
        write_result(files[-1], picture)
    return files


def combine_reports(
    directories: Sequence[str | os.PathLike[str]], output: str | os.PathLike[str]
) -> tuple[list[SweepResults], list[Location]]:
    """Write a single report on one or more sweeps, finished or not.

    Args:
      directories: the sweeps' output directories, or their URLs.
      output: the directory or URL to write to; for a single sweep, it may be that sweep's own.

    Returns:
      The sweeps' results, and the paths of the report's files.

    Raises:
      ValueError: a directory has no results, or `output` already contains something else.
    """
    target = parse_location(output, "--output")
    sources = [parse_location(directory, "--report-only") for directory in directories]
    own = [absolute(target)] == [absolute(source) for source in sources]
    may_be: list[Kind] = ["sweep"] if own else []
    if isinstance(target, ObjectUrl):
        check_output_url(target, "--output", may_be=may_be)
    else:
        check_output(target, "--output", may_be=may_be)
    sweeps = [read_results(source) for source in sources]
    return sweeps, write_report(sweeps, target)


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
    return f'{heading}<div class="wide">{html_table(rows)}</div>'


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
