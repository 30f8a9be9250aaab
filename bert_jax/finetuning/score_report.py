"""Report the scores of an evaluation as lines of text and as a JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from bert_jax.finetuning.evaluation import EvaluationResult
from bert_jax.json_files import read_json
from bert_jax.local_paths import is_url, shown
from bert_jax.runs.outputs import check_output_file
from bert_jax.storage.locations import exists, local_input
from bert_jax.storage.uploads import write_result
from bert_jax.storage.urls import parse_location
from bert_jax.training.reports import format_metric

# The keys in a scores file.
_KEYS = {"work_dir", "step", "data", "sets"}


def lines(result: EvaluationResult) -> Iterator[str]:
    """Yield the lines that describe the model and its scores on every set."""
    yield f"model      {shown(result.work_dir)}, step {result.step:,}"
    yield f"devices    {result.devices}"
    yield from result.notes
    for name, scores in result.sets.items():
        yield f"{name}: {scores.examples:,} example{'s' * (scores.examples != 1)}"
        for metric, value in scores.scores.items():
            yield f"  {metric:28s} {format_metric(metric, value)}"
        yield from _table(scores.by_type, scores.type_is)
        yield from (f"predictions: {file}" for file in scores.files)


def check_outputs(
    output: Path | None, predictions: str | os.PathLike[str] | None, *, labeled: bool
) -> None:
    """Check the paths that `evaluate` will write its results to, before it does any work.

    Args:
      output: the JSON file given with `--output`, or None.
      predictions: the directory given with `--predictions`, or None.
      labeled: whether there are labels; False if `--unlabelled` is given.

    Raises:
      ValueError: there are no labels, but `output` is given or `predictions` is missing. The JSON
        file is also rejected if it is in the predictions directory, or if it exists and was not
        written by `evaluate`.
    """
    if not labeled and (output or not predictions):
        raise ValueError(
            "--unlabelled: without labels, there are predictions but no scores. Add --predictions "
            "DIR, and omit --output"
        )
    if output is None:
        return
    if predictions and output.resolve().parent == Path(predictions).resolve():
        raise ValueError(
            f"--output={output}: the prediction files are written to {predictions}, and one of "
            "them could overwrite this file. Specify a path in another directory"
        )
    if is_url(output):
        check_output_file(output, "--output")
        if not exists(parse_location(output)):
            return
        output = local_input(output, "--output")
    if not output.exists():
        return
    # Do not read from a pipe, which would block.
    if not output.is_file():
        raise ValueError(
            f"--output={output}: not a regular file, so JSON cannot be written to it. Omit the "
            "option to only print the scores"
        )
    # An empty file may be overwritten; for example, mktemp creates one.
    if not output.stat().st_size:
        return
    try:
        content = read_json(output)
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict) or content.keys() != _KEYS:
        raise ValueError(
            f"--output={shown(output)}: the file exists and was not written by `evaluate`, so it "
            "is not overwritten. Use another path"
        )


def write_scores(output: Path, result: EvaluationResult, data: str | None) -> None:
    """Write the scores to a JSON file.

    Args:
      output: the file to write.
      result: the result of the evaluation.
      data: the evaluated file or directory; None for the run's validation set.

    Raises:
      NotWritten: the file cannot be written.
    """
    sets = {
        name: {
            "examples": scores.examples,
            "scores": scores.scores,
            **({"types": scores.by_type} if scores.by_type else {}),
        }
        for name, scores in result.sets.items()
    }
    values = {"work_dir": shown(result.work_dir), "step": result.step, "data": data, "sets": sets}
    write_result(output, json.dumps(values, indent=2) + "\n")


def _table(rows: Mapping[str, Mapping[str, float]], title: str) -> Iterator[str]:
    if not rows:
        return
    columns = next(iter(rows.values()))
    yield f"  {title:28s}" + "".join(f" {column:>9s}" for column in columns)
    for name, row in rows.items():
        cells = [f"{x:9.3f}" if isinstance(x, float) else f"{x:9,d}" for x in row.values()]
        yield f"  {name:28s} {' '.join(cells)}"
