"""Find the checkpoints of a work directory, and extract one into a work directory of its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from bert_jax.conversion import to_dataclass
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.models.config import ComputeConfig
from bert_jax.runs.outputs import new_directory
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    Comparison,
    best_so_far,
    load_model_parameters,
    named_step,
    read_comparison,
    read_inference_defaults,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
    write_model,
)
from bert_jax.training.checkpoint_files import identity_of, newest_step, require_step, steps_in
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.metrics_log import LOG_NAME, copy_metrics

BEST: Literal["best"] = "best"
NEWEST: Literal["newest"] = "newest"
Step = int | Literal["best", "newest"]


@dataclass(frozen=True)
class ExtractResult:
    """An extracted checkpoint: the new work directory and the step of the checkpoint."""

    work_dir: Path
    step: int


def extract(
    work_dir: str | os.PathLike[str], output: str | os.PathLike[str], step: Step
) -> ExtractResult:
    """Extract one checkpoint of a run into a new work directory.

    The new directory has the parameters, the tokenizer and the run's config, log and manifests, but
    no optimizer state: a new run can start from it, but none can resume in it.

    Args:
      work_dir: the work directory of a pretraining or fine-tuning run, which may be in progress.
      output: the work directory to create.
      step: the step of the checkpoint, "newest", or "best" according to the held-out metric of the
        run's config.

    Raises:
      ValueError: there is no such checkpoint or no best one, or `output` exists.
      OSError: a file cannot be read or written.
    """
    work_dir, output = Path(work_dir), Path(output)
    config, origin = read_model(work_dir)
    tokenizer = read_tokenizer(work_dir, config.encoder)
    number = _number(work_dir, step)
    identity = identity_of(work_dir / CHECKPOINTS_NAME, number)
    with new_directory(output) as target:
        compute = ComputeConfig(dtype="float32", attention="xla")
        parameters = load_model_parameters(work_dir, config, compute, number)
        # With the run's own identity, a run would resume here without its optimizer state.
        marked = {**identity, "parameters alone": f"those of step {number}"}
        save_parameters(target / CHECKPOINTS_NAME, jax.device_get(parameters), marked, number)
        _copy_records(work_dir, target, number)
        tokenizer.save(target / TOKENIZER_NAME)
        write_model(
            config,
            origin,
            target,
            tokenizer=tokenizer,
            inference_defaults=read_inference_defaults(work_dir),
            sentence_embedding=read_sentence_embedding(work_dir),
        )
    return ExtractResult(output, number)


def _copy_records(work_dir: Path, target: Path, step: int) -> None:
    """Copy a run's config and manifests, and its log up to `step`."""
    for file in (work_dir / RESOLVED_NAME, *work_dir.glob("manifest-*.json")):
        if file.is_file():
            shutil.copyfile(file, target / file.name)
    if (log := work_dir / LOG_NAME).is_file():
        copy_metrics(log, target / LOG_NAME, up_to=step)


def _number(work_dir: Path, step: Step) -> int:
    """Return the number of the step that `extract` is asked for."""
    if isinstance(step, int):
        return step
    if step == NEWEST:
        return newest_step(work_dir / CHECKPOINTS_NAME)
    if step == BEST:
        return _best(work_dir)
    raise ValueError(f"step={step!r}: expected a number of steps, '{BEST}' or '{NEWEST}'")


def _best(work_dir: Path) -> int:
    named = named_step(work_dir)
    if named is not None:  # recorded by a finished fine-tuning run
        return named
    comparison = read_comparison(work_dir) or pretraining_comparison(work_dir)
    best = best_so_far(work_dir, comparison)
    if best is None:
        raise ValueError(
            f"{work_dir}: no checkpoint that is there was evaluated with {comparison.metric}, so "
            "none is known to be best (checkpoint.keep_best keeps such): give a step, or "
            f"'{NEWEST}'"
        )
    return best


def pretraining_comparison(work_dir: Path) -> Comparison:
    """Return the metric by which a pretraining run keeps its best checkpoints.

    Raises:
      ValueError: the run's config is missing or damaged.
    """
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: no {RESOLVED_NAME} in it, which says what is best: give --step {NEWEST} "
            "or a number"
        )
    with expecting_fields(file):
        kept = read_json_object(file)["checkpoint"]
        values = {"metric": kept["best_metric"], "lower_is_better": kept["lower_is_better"]}
        return to_dataclass(Comparison, values, f"{file}: checkpoint")


def checkpoints_at(path: str | os.PathLike[str], step: int | None = None) -> tuple[Path, list[int]]:
    """Return the checkpoints directory that a path refers to, and the steps of its checkpoints.

    Args:
      path: a work directory, its checkpoints directory, or a single checkpoint in it.
      step: the only step to return; None for all of them.

    Raises:
      ValueError: there is no checkpoint, or none of this step.
    """
    directory, steps = _find_checkpoints(Path(path))
    if step is None:
        return directory, steps
    require_step(directory, step)
    return directory, [step]


def _find_checkpoints(path: Path) -> tuple[Path, list[int]]:
    for directory in (path / CHECKPOINTS_NAME, path):
        if steps := steps_in(directory):
            return directory, steps
    if path.name.isdecimal() and int(path.name) in steps_in(path.parent):
        return path.parent, [int(path.name)]
    raise ValueError(
        f"{path}: holds no checkpoint. Give the work directory of a run or of `import`, or "
        f"the `{CHECKPOINTS_NAME}` directory in it"
    )
