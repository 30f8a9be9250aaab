"""Keep the scores of fine-tuned checkpoints in a log next to the pretraining run's own log."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.files import write_file
from bert_jax.json_files import expecting_fields
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.training.reports import format_metric

DOWNSTREAM_LOG_NAME = "downstream.jsonl"
DOWNSTREAM_PREFIX = "downstream_"  # the prefix of the names of the curves
_KIND = "downstream"


@dataclass(frozen=True)
class DownstreamScore:
    """The scores of one checkpoint of a pretraining run, fine-tuned on one task.

    Attributes:
      task: the name of the task.
      step: the checkpoint's step.
      metric: the metric by which the task's checkpoints are compared.
      scores: all scores on the validation set, keyed by metric; empty if fine-tuning diverged.
      seconds: the time that fine-tuning took.
      checkpoint: a checksum of the checkpoint's parameters.
      config: a checksum of the task's config and examples.
    """

    task: str
    step: int
    metric: str
    scores: Mapping[str, float]
    seconds: float
    checkpoint: str
    config: str

    def __str__(self) -> str:
        score = "diverged"
        if self.metric in self.scores:
            score = f"{self.metric} {format_metric(self.metric, self.scores[self.metric])}"
        return f"fine-tuned after step {self.step:,}:  {self.task} {score}"

    def tagged(self) -> dict[str, float]:
        """Return all scores, keyed by task and metric."""
        return {f"{self.task}_{name}": value for name, value in self.scores.items()}


class DownstreamLog:
    """The log `downstream.jsonl`. Only one process at a time may have it open.

    Args:
      work_dir: the work directory of the pretraining run.

    Raises:
      ValueError: a line is not an entry of the log.
    """

    def __init__(self, work_dir: Path):
        self._path = work_dir / DOWNSTREAM_LOG_NAME
        self.entries = list(_read(self._path))

    def append(self, score: DownstreamScore) -> None:
        """Add an entry to the log by rewriting the whole file.

        Raises:
          NotWritten: the file cannot be written.
        """
        self.entries.append(score)
        write_file(self._path, "".join(map(_line, self.entries)))

    def has(self, task: str, step: int, *, checkpoint: str, config: str) -> bool:
        """Return whether the checkpoint at `step` has already been scored with this config."""
        wanted = (task, step, checkpoint, config)
        return any((x.task, x.step, x.checkpoint, x.config) == wanted for x in self.entries)

    @property
    def last_step(self) -> int:
        """The last step with a score; 0 if there is none."""
        return max((entry.step for entry in self.entries), default=0)


def read_downstream_scores(work_dir: str | os.PathLike[str]) -> list[DownstreamScore]:
    """Read the scores of a run's fine-tuned checkpoints, in the order of their steps.

    A checkpoint may have been scored more than once on the same task, because the run went back to
    an earlier step or the task's config changed. Only its newest score is included. Scores for
    steps that the run has yet to repeat are left out.

    Raises:
      ValueError: a line is not an entry of the log.
    """
    directory = Path(work_dir)
    log = directory / LOG_NAME
    progress = max((x["step"] for x in read_metrics(log)), default=0) if log.is_file() else None
    newest = {(x.task, x.step): x for x in _read(directory / DOWNSTREAM_LOG_NAME)}
    chosen = [x for x in newest.values() if progress is None or x.step <= progress]
    return sorted(chosen, key=lambda score: (score.step, score.task))


def _line(score: DownstreamScore) -> str:
    scores = {name: x if math.isfinite(x) else None for name, x in score.scores.items()}
    return json.dumps({"kind": _KIND, **vars(score), "scores": scores}) + "\n"


def _read(path: Path) -> Iterator[DownstreamScore]:
    for entry in read_metrics(path) if path.is_file() else ():
        with expecting_fields(path, "Move the file away to start a new log"):
            score = _score(entry)
        yield score


def _score(entry: Mapping[str, Any]) -> DownstreamScore:
    return DownstreamScore(
        str(entry["task"]),
        int(entry["step"]),
        str(entry["metric"]),
        {str(name): float(x) for name, x in entry["scores"].items() if x is not None},
        float(entry["seconds"]),
        str(entry["checkpoint"]),
        str(entry["config"]),
    )
