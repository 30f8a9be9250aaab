"""Read and write the files that record a sweep's identity and how its runs ended."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Mapping
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
from bert_jax.runs.default_checkpoint import default_checkpoint_step
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, MODEL_NAME, TOKENIZER_NAME
from bert_jax.storage.locations import is_file, local_copy
from bert_jax.storage.urls import parse_location
from bert_jax.training.metrics_log import LOG_NAME, read_metrics
from bert_jax.validation import differences

IDENTITY_NAME = "sweep.json"
DIVERGED_NAME = "diverged.json"
Keep = Literal["all", "best", "none"]
_KEEP = "keep"
# These keys occur only in the identity of a sweep with variants.
VARIED, VARIANTS = "varied", "variants"
_ELSEWHERE = "Use another output"

# Config keys that may differ between a sweep's runs, and keys that do not affect any score.
_FREE_KEYS = (
    *("work_dir", "seed", "batch_size", "num_epochs"),
    *("evaluation_batch_size", "report_every_steps", "tensorboard", "trackers", "mesh"),
)
# Keys in a task's `files` section whose values may be detected from a data file instead of being
# set in the config.
_DETECTED = ("first", "second", "label", "labels")


@dataclass(frozen=True)
class Ended:
    """How a run ended, according to the files in its directory.

    Attributes:
      scores: the scores of the best evaluation; empty if the run diverged.
      last_scores: the scores of the last evaluation; empty if the run diverged.
      step: the step of the best evaluation.
      trained_steps: the number of train steps that the run completed before it ended.
      seconds: the total duration of the train steps.
      diverged: the reason why the run diverged; empty if it did not.
    """

    scores: dict[str, float]
    last_scores: dict[str, float]
    step: int
    trained_steps: int
    seconds: float
    diverged: str = ""


def shared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a plain config that all runs in a sweep share."""
    values = {name: x for name, x in config.items() if name not in _FREE_KEYS}
    optimizer = values["optimizer"].items()
    values["optimizer"] = {name: x for name, x in optimizer if name != "peak_learning_rate"}
    return values


def _without_paths(identity: Mapping[str, Any]) -> dict[str, Any]:
    """Return an identity without file paths, since files are identified by their checksums."""
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
    """Return a stored config with defaults for keys that did not exist when it was stored."""
    try:
        values = without_absent_sections(FinetuneConfig, stored)
        config = to_dataclass(FinetuneConfig, {**values, "work_dir": "anywhere"}, str(file))
    except ValueError:
        # A key was removed since. Keep it, so that the message about differences lists it.
        return stored
    shared: dict[str, Any] = json.loads(json.dumps(shared_config(to_plain(config))))
    return shared


def kept_before(output: str | os.PathLike[str]) -> Keep | None:
    """Return the last value of `keep` for the sweep in `output`, or None if there is no sweep.

    Args:
      output: the sweep's directory, or its URL.

    Raises:
      ValueError: the directory is from an early version, which did not record `keep`. A wrong guess
        could delete parameters.
    """
    file = parse_location(output) / IDENTITY_NAME
    if not is_file(file):
        return None
    keep: Keep | None = _stored(local_copy(file)).get(_KEEP)
    if keep not in (choices := get_args(Keep)):
        raise ValueError(
            f"{file}: keep={keep!r} does not specify which runs keep their parameters. Set keep to "
            f"{', '.join(choices[:-1])} or {choices[-1]}."
        )
    return keep


def claim(output: Path, current: Mapping[str, Any], keep: Keep) -> None:
    """Claim the directory `output` for this sweep, and record `keep`.

    Args:
      output: the sweep's directory.
      current: the identity of the sweep or, if it has variants, a dict with two entries: `VARIED`
        lists the varied config keys, and `VARIANTS` maps each variant's name to its identity.
      keep: which runs keep their parameters.

    Raises:
      ValueError: the directory contains another sweep; the message lists the differences.
    """
    file, here = output / IDENTITY_NAME, json.loads(json.dumps(current))
    if not file.is_file():
        write_file(file, _content(here, keep))
        return
    stored = _stored(file)
    before = stored.pop(_KEEP, None)
    with expecting_fields(file, _ELSEWHERE):
        lines = _all_differences(stored, here, file)
        # Keep the stored variants that are not in this grid.
        if not lines and VARIANTS in here:
            here[VARIANTS] = {**stored[VARIANTS], **here[VARIANTS]}
    if lines:
        changeable = ", seeds and the values of varied keys" if VARIED in here else " and seeds"
        listed = "\n  ".join(lines)
        raise ValueError(
            f"{output}: contains a different sweep (that sweep -> this command):\n  {listed}\n"
            "Repeat the command that started that sweep, or use another output. Batch sizes, "
            f"learning rates, epochs{changeable} may change."
        )
    if (before, stored) != (keep, here):
        write_file(file, _content(here, keep))


def _content(identity: Mapping[str, Any], keep: Keep) -> str:
    return json.dumps({**identity, _KEEP: keep}, indent=2) + "\n"


def _all_differences(stored: dict[str, Any], current: dict[str, Any], file: Path) -> list[str]:
    """Return a line for each difference between two sweeps, ignoring the values that they vary."""
    varied = [each.get(VARIED, []) for each in (stored, current)]
    if varied[0] != varied[1]:
        return differences({"varied keys": varied[0]}, {"varied keys": varied[1]})
    if VARIANTS not in current:
        return _differences(stored, current, file)
    for name, identity in current[VARIANTS].items():
        if name in stored[VARIANTS]:
            lines = _differences(stored[VARIANTS][name], identity, file)
        else:
            other = next(iter(stored[VARIANTS].values()), identity)
            lines = _differences(other, identity, file, current[VARIED])
        if lines:
            return lines
    return []


def _differences(
    stored: dict[str, Any],
    current: dict[str, Any],
    file: Path,
    varied: Collection[str] = (),
) -> list[str]:
    """Return a line for each difference between two identities, or [] if only file paths differ.

    If the identities belong to different variants, only the parts that the `varied` keys cannot
    affect are compared.
    """
    stored = {**stored, "config": _with_new_keys(stored["config"], file)}
    stored, current = (_unaffected(each, varied) for each in (stored, current))
    differ = differences(_without_paths(stored), _without_paths(current))
    return differences(stored, current) if differ else []


def _unaffected(identity: Mapping[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return the parts of an identity that the varied keys cannot affect."""
    sections = {key.partition(".")[0] for key in varied}
    affecting = {
        "parameters of init_from": {"init_from", "from_scratch"},
        "tokenizer": {"init_from"},
        "examples": {"init_from", "max_length", *task_sections()},
        "dtype": {"compute"},
    }
    parts = {name: x for name, x in identity.items() if not sections & affecting.get(name, set())}
    detected = {
        f"{section}.files.{name}"
        for section in task_sections()
        for name in _DETECTED
        if any(key.startswith(f"{section}.files.") for key in varied)
    }
    return {**parts, "config": _without_keys(identity["config"], {*varied, *detected})}


def _without_keys(config: Mapping[str, Any], skipped: Collection[str]) -> dict[str, Any]:
    """Return a plain config without the given dotted keys."""
    kept = {}
    for name, value in config.items():
        inside = [key.removeprefix(f"{name}.") for key in skipped if key.startswith(f"{name}.")]
        if name not in skipped:
            kept[name] = _without_keys(value, inside) if isinstance(value, Mapping) else value
    return kept


def _stored(file: Path) -> dict[str, Any]:
    return read_json_object(file, _ELSEWHERE)


def ended(directory: Path) -> Ended | None:
    """Return how the run in `directory` ended, or None if it has not ended."""
    diverged, outcome = directory / DIVERGED_NAME, read_outcome(directory)
    if diverged.is_file():
        fix = "Remove it to repeat the run"
        with expecting_fields(diverged, fix):
            message = read_json_object(diverged, fix)["message"]
        return Ended({}, {}, 0, *_trained(directory), str(message))
    if outcome is None:
        return None
    # The scores may be outdated: the run may have been resumed with a larger number of epochs.
    if has_model(directory) and default_checkpoint_step(directory) != outcome.step:
        return None
    evaluations = [entry for entry in _logged(directory) if entry["kind"] == "evaluation"]
    if not evaluations:
        raise ValueError(
            f"{directory}: the run ended, but {LOG_NAME}, which has its scores, is missing. "
            "Restore the file, or remove the directory to repeat the run."
        )
    last = {name: evaluations[-1][name] for name in outcome.scores}
    return Ended(dict(outcome.scores), last, outcome.step, *_trained(directory))


def write_diverged(directory: Path, message: str) -> None:
    """Record that a run diverged, so that it is not repeated."""
    write_file(directory / DIVERGED_NAME, json.dumps({"message": message}, indent=2) + "\n")


def has_model(directory: Path) -> bool:
    """Return whether a run still has its parameters; False once their removal has begun."""
    return (directory / MODEL_NAME).is_file() and (directory / CHECKPOINTS_NAME).is_dir()


def has_leftovers(directory: Path) -> bool:
    """Return whether `remove_model` has something to remove."""
    names = (MODEL_NAME, CHECKPOINTS_NAME, TOKENIZER_NAME)
    return any((directory / name).exists() for name in names)


def remove_model(directory: Path) -> None:
    """Remove a run's parameters, model.json and tokenizer, but not its scores, log and curves."""
    (directory / MODEL_NAME).unlink(missing_ok=True)
    for name in (CHECKPOINTS_NAME, TOKENIZER_NAME):
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)


def _trained(directory: Path) -> tuple[int, float]:
    """Return the number of train steps that a run completed, and their total time in seconds."""
    entries = [entry for entry in _logged(directory) if entry["kind"] == "train"]
    last = max((entry["step"] for entry in entries), default=0)
    return last, sum(entry["seconds"] for entry in entries)


def _logged(directory: Path) -> list[dict[str, Any]]:
    log = directory / LOG_NAME
    return read_metrics(log) if log.is_file() else []
