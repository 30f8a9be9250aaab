"""Choose the checkpoint to resume from: the newest intact one, or an earlier one on request."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.files import sync_directory, write_file
from bert_jax.json_files import read_json_object
from bert_jax.training.checkpoint_files import (
    DamagedCheckpoint,
    require_identity,
    require_intact,
    require_step,
    steps_in,
    verify,
)
from bert_jax.training.distributed import agreed
from bert_jax.training.metrics_log import LOG_NAME

# Next to the `checkpoints` directory of a run.
ASIDE_NAME = "checkpoints-set-aside"
_FROM_STEP_NAME = "from-step.json"
_NOTHING, _REFUSED = -1, -2


@dataclass(frozen=True)
class Recovery:
    """The checkpoint that a run resumes from.

    step: its step, whose files have just been verified; None if there is no checkpoint yet.
    lines: lines to print for the user, on the first process.
    """

    step: int | None
    lines: tuple[str, ...] = ()


def recover(directory: Path, identity: Mapping[str, Any], from_step: int | None = None) -> Recovery:
    """Make the newest checkpoint in `directory` the one that a run resumes from.

    Damaged checkpoints, and with `from_step` all later ones, are moved to `ASIDE_NAME` next to
    `directory`; nothing is deleted. The caller must have locked the work directory against other
    runs, and all processes of a run must call this together.

    Args:
      identity: the run's identity, or the part of it that is known so far. The checkpoint of
        `from_step` must have the same identity, which is checked before others are moved.
      from_step: the step to return to. Applies once: if the same command is repeated after an
        interruption, the run resumes from its newest checkpoint.

    Raises:
      ValueError: all checkpoints are damaged, or `from_step` has no intact checkpoint of this run.
    """
    import jax

    if jax.process_index() != 0:
        step = agreed(_NOTHING)
        if step == _REFUSED:
            raise ValueError(f"{directory}: cannot resume from it. See the message of process 0")
        return Recovery(None if step == _NOTHING else step)
    try:
        recovery = _recover(directory, identity, from_step)
    except Exception:
        agreed(_REFUSED)
        raise
    agreed(_NOTHING if recovery.step is None else recovery.step)
    return recovery


def _recover(directory: Path, identity: Mapping[str, Any], from_step: int | None) -> Recovery:
    lines: list[str] = []
    if from_step is not None:
        lines += _go_back(directory, identity, from_step)
    steps = steps_in(directory)
    damage: dict[int, str] = {}
    newest = None
    for step in reversed(steps):
        # Only the checkpoint to resume from is read in full.
        problem = verify(directory, step, quick=newest is not None).problem
        if problem is not None:
            damage[step] = problem
        elif newest is None:
            newest = step
    if damage and newest is None:
        raise DamagedCheckpoint(
            f"{directory}: all checkpoints are damaged ({_listed(damage)}). Restore one from a "
            "copy, or move the directory to start the run again"
        )
    if damage:
        aside = _set_aside(directory, sorted(damage))
        resumed = "" if newest is None or max(damage) < newest else f"; resuming from step {newest}"
        lines.append(f"warning    damaged checkpoints moved to {aside}: {_listed(damage)}{resumed}")
    return Recovery(newest, tuple(lines))


def _go_back(directory: Path, identity: Mapping[str, Any], step: int) -> list[str]:
    """Move all checkpoints after `step` aside, unless an earlier command did so already."""
    record = directory.parent / ASIDE_NAME / _FROM_STEP_NAME
    if record.is_file() and _recorded_step(record) == step:
        return [
            f"hint       --from-step {step} was already applied by an earlier command, so the run "
            f"resumes from its newest checkpoint; to apply it again, remove {record}"
        ]
    require_step(directory, step)
    require_intact(directory, step)
    require_identity(directory, step, identity, only=identity.keys())
    later = [other for other in steps_in(directory) if other > step]
    lines = []
    if later:
        log = directory.parent / LOG_NAME
        if log.is_file():
            record.parent.mkdir(exist_ok=True)
            shutil.copyfile(log, _unused(record.parent / f"metrics-up-to-{later[-1]}.jsonl"))
        aside = _set_aside(directory, later)
        lines.append(
            f"from step  {step}: later checkpoints ({', '.join(map(str, later))}) moved to {aside}"
        )
    record.parent.mkdir(exist_ok=True)
    write_file(record, json.dumps({"from_step": step}) + "\n")
    return lines


def _recorded_step(record: Path) -> int | None:
    try:
        return int(read_json_object(record)["from_step"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record}: cannot be read ({error}). Remove it") from error


def _set_aside(directory: Path, steps: Sequence[int]) -> Path:
    """Move the checkpoints of `steps` out of `directory` and return their new directory."""
    aside = directory.parent / ASIDE_NAME
    aside.mkdir(exist_ok=True)
    # Move the newest first: after an interruption, no later checkpoint may be left to resume from.
    for step in sorted(steps, reverse=True):
        (directory / str(step)).rename(_unused(aside / str(step)))
    sync_directory(aside)
    sync_directory(directory)
    return aside


def _unused(path: Path) -> Path:
    """Return `path`, or `path` with a number appended if it already exists."""
    candidate, number = path, 1
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}.{number}"), number + 1
    return candidate


def _listed(damage: dict[int, str]) -> str:
    return "; ".join(f"step {step}: {problem}" for step, problem in sorted(damage.items()))
