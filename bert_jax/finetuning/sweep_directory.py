"""What a sweep leaves in its directory: whose it is, and how each of its runs ended."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from bert_jax.conversion import to_dataclass, to_plain, without_absent_sections
from bert_jax.files import write_file
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.outcome import read_outcome
from bert_jax.finetuning.registry import task_sections
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.labeled_data.files import Split
from bert_jax.runs.checkpoints import default_checkpoint_step
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, MODEL_NAME, TOKENIZER_NAME
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.validation import differences

IDENTITY_NAME = "sweep.json"
RUNS_NAME = "runs"
DIVERGED_NAME = "diverged.json"
Keep = Literal["all", "best", "none"]
_KEEP = "keep"
_ELSEWHERE = "Use another --output"

# What the runs of a sweep differ in, and what changes no score.
_FREE = (
    *("work_dir", "seed", "batch_size", "num_epochs"),
    *("evaluation_batch_size", "report_every_steps", "tensorboard", "mesh"),
)


@dataclass(frozen=True)
class Ended:
    """How a run ended, as its directory tells.

    scores: of its best evaluation, last_scores of its last; none if it diverged, and `diverged`
      why.
    """

    scores: dict[str, float]
    last_scores: dict[str, float]
    step: int
    seconds: float
    diverged: str = ""


def shared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a plain config that all runs of a sweep share."""
    values = {name: x for name, x in config.items() if name not in _FREE}
    optimizer = values["optimizer"].items()
    values["optimizer"] = {name: x for name, x in optimizer if name != "peak_learning_rate"}
    return values


def _without_paths(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Without the names of what has a checksum: files may be moved, or spelt otherwise."""
    config = {name: x for name, x in identity["config"].items() if name != "init_from"}
    paths = {"directory", *get_args(Split)}
    for name in task_sections():
        section = {key: x for key, x in (config.get(name) or {}).items() if key not in paths}
        if "files" in section:
            files = section["files"].items()
            section["files"] = {key: x for key, x in files if key not in paths}
        config[name] = section
    return {**identity, "config": config}


def _with_new_keys(stored: dict[str, Any], file: Path) -> dict[str, Any]:
    """What `_binding` gave earlier, with the defaults of keys that there were not yet."""
    try:
        values = without_absent_sections(FinetuneConfig, stored)
        config = to_dataclass(FinetuneConfig, {**values, "work_dir": "anywhere"}, str(file))
    except ValueError:  # keys that are gone: what differs is told as it stands
        return stored
    binding: dict[str, Any] = json.loads(json.dumps(shared_config(to_plain(config))))
    return binding


def kept_before(output: Path) -> Keep | None:
    """Whose parameters the sweep in `output` was last told to keep; None if there is none.

    Raises:
      ValueError: the directory does not say, as those of early versions: a guess could remove them.
    """
    file = output / IDENTITY_NAME
    if not file.is_file():
        return None
    keep: Keep | None = _stored(file).get(_KEEP)
    if keep not in (known := get_args(Keep)):
        raise ValueError(
            f"{file} does not say whose parameters are kept, of all runs, of the best or of none "
            f"(it says {keep!r}): say --keep {', '.join(known[:-1])} or {known[-1]}"
        )
    return keep


def claim(output: Path, current: Mapping[str, Any], keep: Keep) -> None:
    """Makes `output` the directory of this sweep, which keeps the parameters of `keep`.

    Raises:
      ValueError: it is another sweep's; says where they differ.
    """
    file, current = output / IDENTITY_NAME, json.loads(json.dumps(current))
    content = json.dumps({**current, _KEEP: keep}, indent=2) + "\n"
    if not file.is_file():
        write_file(file, content)
        return
    stored = _stored(file)
    before = stored.pop(_KEEP, None)
    with expecting_fields(file, _ELSEWHERE):
        stored["config"] = _with_new_keys(stored["config"], file)
        differ = differences(_without_paths(stored), _without_paths(current))
    if differ:
        lines = "\n  ".join(differences(stored, current))
        raise ValueError(
            f"{output} holds another sweep (there -> here):\n  {lines}\n"
            "Give the command it was begun with, or another --output; batch sizes, learning rates, "
            "epochs and seeds may change"
        )
    if (before, stored) != (keep, current):
        write_file(file, content)


def _stored(file: Path) -> dict[str, Any]:
    return read_json_object(file, _ELSEWHERE)


def ended(directory: Path) -> Ended | None:
    """How the run in `directory` ended; None if it has not."""
    diverged, found = directory / DIVERGED_NAME, read_outcome(directory)
    if diverged.is_file():
        fix = "Remove it to repeat the run"
        with expecting_fields(diverged, fix):
            message = read_json_object(diverged, fix)["message"]
        return Ended({}, {}, 0, _train_seconds(directory), str(message))
    if found is None:
        return None
    # Its scores may be those of an earlier end, before it was given more epochs.
    if has_model(directory) and default_checkpoint_step(directory) != found.step:
        return None
    evaluations = [entry for entry in _logged(directory) if entry["kind"] == "evaluation"]
    if not evaluations:
        raise ValueError(
            f"{directory}: a run ended here, but {LOG_NAME} in it, which says how, is gone: put it "
            "back, or remove the directory, and the run is made again"
        )
    last = {name: evaluations[-1][name] for name in found.scores}
    return Ended(dict(found.scores), last, found.step, _train_seconds(directory))


def write_diverged(directory: Path, message: str) -> None:
    """Notes that a run diverged, which it would again."""
    write_file(directory / DIVERGED_NAME, json.dumps({"message": message}, indent=2) + "\n")


def has_model(directory: Path) -> bool:
    """Whether a run's parameters are there, and have not begun to be removed."""
    return (directory / MODEL_NAME).is_file() and (directory / CHECKPOINTS_NAME).is_dir()


def remove_model(directory: Path) -> None:
    """Removes a run's parameters and what describes them; scores, log and curves stay."""
    (directory / MODEL_NAME).unlink(missing_ok=True)
    for name in (CHECKPOINTS_NAME, TOKENIZER_NAME):
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)


def _train_seconds(directory: Path) -> float:
    return sum(entry["seconds"] for entry in _logged(directory) if entry["kind"] == "train")


def _logged(directory: Path) -> list[dict[str, Any]]:
    log = directory / LOG_NAME
    return read_metrics(log) if log.is_file() else []
