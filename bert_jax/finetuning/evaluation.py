"""Evaluate a fine-tuned model on its own task or on the task in another config."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bert_jax.finetuning.config import EvaluationConfig
from bert_jax.finetuning.open_evaluation import SetScores, open_evaluation
from bert_jax.local_paths import naming_urls
from bert_jax.runs.model_location import local_model
from bert_jax.runs.outputs import check_output
from bert_jax.storage.uploads import new_files
from bert_jax.storage.urls import ObjectUrl, parse_location
from bert_jax.validation import check_config


@dataclass(frozen=True)
class EvaluationResult:
    """The result of evaluating a checkpoint.

    Attributes:
      work_dir: the model's work directory.
      step: the checkpoint's step.
      sets: the scores on each set, keyed by set name.
      notes: messages about the examples and the labels.
      devices: the number and kind of devices.
    """

    work_dir: Path
    step: int
    sets: Mapping[str, SetScores]
    notes: Sequence[str]
    devices: str


@naming_urls()
def evaluate(
    work_dir: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    step: int | None = None,
    labeled: bool = True,
    predictions: str | os.PathLike[str] | None = None,
    config: EvaluationConfig | None = None,
) -> EvaluationResult:
    """Score a fine-tuned model on its validation set, or on another file for its task.

    Args:
      work_dir: the work directory of a fine-tuning run or of an import.
      data: a file in the format of the validation file, or a directory for a GLUE task; if None,
        the validation set itself is scored.
      step: the checkpoint's step; defaults to the best one.
      labeled: whether the examples have labels. Without labels, nothing is scored, and the task's
        test sets are used if `data` is None.
      predictions: a directory for prediction files, which process 0 writes; if None, none are
        written.
      config: the task and settings (for example, `FinetuneConfig.evaluation`) for a model that was
        fine-tuned with other software and then imported; defaults to the config of the model's own
        run.

    Returns:
      An `EvaluationResult` with the scores on each set.

    Raises:
      ValueError: the directory contains no fine-tuned model or no checkpoint at `step`, a file is
        missing or has a different format, or predictions would overwrite a file.
    """
    if config is not None:
        fix = "Pass the `evaluation` of a FinetuneConfig, which `load_config` returns."
        check_config(config, EvaluationConfig, fix)
    with _directory(predictions) as into:
        opened = open_evaluation(
            local_model(work_dir),
            config,
            data=None if data is None else os.fspath(data),
            step=step,
            labeled=labeled,
            into=into,
        )
        scores = opened.score(into)
    mesh = opened.scorer.mesh
    return EvaluationResult(
        opened.work_dir,
        opened.step,
        scores,
        opened.notes,
        f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
    )


@contextmanager
def _directory(predictions: str | os.PathLike[str] | None) -> Iterator[Path | None]:
    """Yield the local directory for the prediction files, or None if none are wanted.

    If `predictions` is a URL, the files are uploaded at the end.
    """
    if predictions is None:
        yield None
        return
    location = parse_location(predictions, "--predictions")
    if isinstance(location, ObjectUrl):
        with new_files(location, "--predictions") as directory:
            yield directory
        return
    if location.is_file():
        raise ValueError(
            f"--predictions {location} is a file. Specify a directory for the prediction files."
        )
    check_output(location, "--predictions")
    yield location
