"""Write and read the results of a fine-tuning run: scores, predictions and model.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bert_jax.files import write_file
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.task_data import TaskData
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.local_paths import make_directory
from bert_jax.models.model import ModelConfig
from bert_jax.runs.locations import WorkDir
from bert_jax.runs.work_dir import Comparison, InferenceDefaults, named_step, write_model
from bert_jax.tokenizers.tokenizer import Tokenizer
from bert_jax.training.reports import format_metric

SCORES_NAME = "scores.json"
PREDICTIONS_NAME = "predictions"


@dataclass(frozen=True)
class Outcome:
    """The best step of a run, its scores on the validation sets, and its predictions.

    Attributes:
      step: the best step.
      scores: the scores at that step, keyed by metric name.
      predictions: the prediction files for the test sets.
      tests: the fingerprint of each test set, keyed by set name.
    """

    step: int
    scores: Mapping[str, float]
    predictions: Sequence[Path]
    tests: Mapping[str, str]


def write_outcome(place: WorkDir, outcome: Outcome) -> None:
    """Write the outcome to `scores.json` in a work directory."""
    content = {
        "step": outcome.step,
        "scores": dict(outcome.scores),
        "predictions": [str(place.shown(file)) for file in outcome.predictions],
        "tests": dict(outcome.tests),
    }
    write_file(place.path / SCORES_NAME, json.dumps(content, indent=2) + "\n")


def read_outcome(work_dir: Path) -> Outcome | None:
    """Read the outcome that `write_outcome` wrote; return None if there is none yet.

    Raises:
      ValueError: the file is damaged.
    """
    file = work_dir / SCORES_NAME
    if not file.is_file():
        return None
    fix = "Remove it, and the same command will write it again"
    with expecting_fields(file, fix):
        content = read_json_object(file, fix)
        # Use only the file names, since the directory may have been moved or copied.
        named = (Path(prediction).name for prediction in content["predictions"])
        files = [work_dir / PREDICTIONS_NAME / name for name in named]
        scores = {name: float(score) for name, score in content["scores"].items()}
        # Early versions did not record the test sets, so predictions will be written again.
        return Outcome(int(content["step"]), scores, files, dict(content.get("tests", {})))


def concluded_with(work_dir: Path, best_step: int | None, tests: Mapping[str, str]) -> bool:
    """Return whether there is a complete outcome for this step and these test sets.

    Args:
      work_dir: the run's work directory.
      best_step: the best step; None before the end of the run.
      tests: the current fingerprint of each test set, keyed by set name, to detect changes.
    """
    outcome = read_outcome(work_dir)
    if best_step is None or outcome is None:
        return False
    is_current = outcome.step == best_step and outcome.tests == tests
    is_complete = all(file.is_file() for file in outcome.predictions)
    return is_current and is_complete and best_step == named_step(work_dir)


def describe_model(
    work_dir: Path,
    origin: Mapping[str, str],
    model: ModelConfig,
    tokenizer: Tokenizer,
    compared_by: Comparison,
    inference_defaults: InferenceDefaults,
    best_step: int | None,
) -> None:
    """Write the run's `model.json`; `best_step` is None before the end of the run."""
    write_model(
        model,
        origin,
        work_dir,
        tokenizer=tokenizer,
        best_step=best_step,
        compared_by=compared_by,
        inference_defaults=inference_defaults,
    )


_BY_CHANCE = (
    "is possible without reading the text. This can happen with few examples; try another seed or "
    "learning rate (bert-jax sweep), or more epochs"
)


def conclusion(outcome: Outcome, data: TaskData, compared_by: Comparison) -> list[str]:
    """Return lines that report the best checkpoint's scores and the prediction files."""
    metric = compared_by.metric
    lines = [f"best checkpoint by {metric}: step {outcome.step:,}"]
    lines += [f"  {name:28s} {format_metric(name, x)}" for name, x in outcome.scores.items()]
    # A loss has no chance level.
    scored_by = data.best_metric if metric.endswith(LOSS) else metric
    score, chance = outcome.scores[scored_by], data.chance(scored_by)
    if score <= chance:
        reached, by_chance = format_metric(scored_by, score), format_metric(scored_by, chance)
        lines.append(f"NOTE  {scored_by} is {reached}; {by_chance} {_BY_CHANCE}")
    return [*lines, *(f"predictions: {file}" for file in outcome.predictions)]


INPUTS_NAME = "inputs.json"


def claim_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Record the source of the prediction files that are about to be written to a directory.

    Args:
      directory: the directory for the predictions; created if it is missing.
      names: the names of the files.
      source: the source of the predictions: their input and the model.

    Raises:
      ValueError: one of the files exists and does not come from `source`; see `check_files`.
    """
    check_files(directory, names, source)
    made = _inputs(directory) | dict.fromkeys(names, source)
    write_file(make_directory(directory) / INPUTS_NAME, json.dumps(made, indent=2) + "\n")


def check_files(directory: Path, names: Sequence[str], source: str) -> None:
    """Refuse to overwrite predictions for another input or from another model.

    Raises:
      ValueError: one of the files exists, and `INPUTS_NAME` does not list `source` as its source.
    """
    inputs = _inputs(directory)
    for name in names:
        file = directory / name
        if not file.exists() or inputs.get(name) == source:
            continue
        problem = f"holds predictions for {inputs[name]}" if name in inputs else "already exists"
        raise ValueError(
            f"{file}: the file {problem}, and predictions for {source} would overwrite it. "
            "Use another directory with --predictions, or remove the file"
        )


def _inputs(directory: Path) -> dict[str, str]:
    file = directory / INPUTS_NAME
    if not file.is_file():
        return {}
    try:
        return {name: str(source) for name, source in read_json_object(file).items()}
    except ValueError as error:
        fix = "Use another directory with --predictions, or remove the file"
        raise ValueError(f"{error}. {fix}") from error
