"""Keep a run's metrics in a single JSON Lines log, even if the run is stopped and resumed."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, assert_never

from bert_jax.files import write_file, writing
from bert_jax.json_files import parse_json
from bert_jax.local_paths import make_directory
from bert_jax.training.reports import (
    DivergenceReport,
    EvaluationReport,
    Message,
    Report,
    TrainReport,
)

logger = logging.getLogger(__name__)

LOG_NAME = "metrics.jsonl"


class MetricsLog:
    """A log of entries `{"kind": …, "step": …, metric: value, …}`, one per line.

    A run that resumes from a checkpoint repeats the steps after it. Opening the log therefore
    removes all entries after that step. An entry is not written again if its kind and step are
    already in the log. A run without a checkpoint starts over, so all entries are removed,
    including the evaluation before its first step.

    Args:
      path: the file to append to.
      start_step: the step from which the run resumes; 0 if it has no checkpoint.

    Raises:
      ValueError: a line other than the last is not an entry. An unterminated last line, which a
        killed process may leave behind, is removed with a warning.
    """

    def __init__(self, path: str | os.PathLike[str], *, start_step: int) -> None:
        self._last_step: dict[str, int] = {}
        path = Path(path)
        make_directory(path.parent)
        if path.exists():
            entries = read_metrics(path)
            kept = [entry for entry in entries if entry["step"] <= start_step] if start_step else []
            if len(kept) < len(entries):
                dropped = len(entries) - len(kept)
                noun = "entry" if dropped == 1 else "entries"
                where = f"after step {start_step}" if start_step else "of a run without checkpoints"
                logger.info("%s: removed %d %s %s", path, dropped, noun, where)
            _rewrite(path, kept)
            self._last_step = {entry["kind"]: entry["step"] for entry in kept}
        self._path = path
        with writing(path):
            # Do not buffer, since closing a buffered file would retry a failed write.
            self._file = path.open("ab", buffering=0)

    def __call__(self, report: Report) -> None:
        """Append a report; ignore messages."""
        match report:
            case TrainReport():
                self.append("train", report.step, _train_values(report))
            case EvaluationReport():
                self.append("evaluation", report.step, report.metrics)
            case DivergenceReport():
                self.append(report.kind, report.step, report.values)
            case Message():
                pass
            case _:
                assert_never(report)

    def append(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Write one entry, with null for non-finite values, since JSON has no NaN.

        Raises:
          FileNotFoundError: the file was removed.
          NotWritten: the file cannot be written, for example because the disk is full.
        """
        if not self._path.exists():  # writes to a removed file would be lost
            raise FileNotFoundError(
                f"{self._path}: the file was removed during the run, so the run has stopped. "
                "Restore the work directory and run the same command again to resume, or start "
                "over."
            )
        if step <= self._last_step.get(kind, -1):
            return
        self._last_step[kind] = step
        finite = {key: value if math.isfinite(value) else None for key, value in values.items()}
        line = json.dumps({"kind": kind, "step": step, **finite}).encode() + b"\n"
        with writing(self._path):
            while line:  # an unbuffered write may be partial
                line = line[self._file.write(line) or 0 :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _train_values(report: TrainReport) -> dict[str, float]:
    extra = {"seconds": report.seconds, "steps": report.steps, "compiling": report.compiling}
    return {**train_scalars(report), **extra}


def train_scalars(report: TrainReport) -> dict[str, float]:
    """Return a train report's values, keyed by their names in the log and in TensorBoard."""
    values = {
        **report.metrics,
        **({} if report.learning_rate is None else {"learning_rate": report.learning_rate}),
        "tokens_per_second": report.tokens_per_second,
        "stall": report.stall,
    }
    if report.utilization is not None:
        values["utilisation"] = report.utilization
    return values


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Read the entries of a metrics log in the order in which they were written.

    Raises:
      ValueError: a line is not an entry; the message gives its number. An unterminated last line,
        which a killed process may leave behind, is skipped with a warning.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: this is not a metrics log, since it is not UTF-8 text ({error}). Move the "
            "file away to start a new log."
        ) from error
    if lines.pop():
        logger.warning("%s: skipped the last line, which a killed process did not complete", path)
    entries = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = parse_json(line)
            if not isinstance(entry["kind"], str) or type(entry["step"]) is not int:
                raise ValueError("its kind is not a string or its step is not a whole number")
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{path}, line {number}: this is not an entry of a metrics log ({error}). Fix the "
                "line, or move the file away to start a new log."
            ) from error
        entries.append(entry)
    return entries


def copy_metrics(source: Path, target: Path, *, up_to: int) -> None:
    """Copy a log's entries up to and including a step.

    Raises:
      ValueError: see `read_metrics`.
    """
    _rewrite(target, [entry for entry in read_metrics(source) if entry["step"] <= up_to])


def _rewrite(path: Path, entries: list[dict[str, Any]]) -> None:
    write_file(path, "".join(json.dumps(entry) + "\n" for entry in entries))
