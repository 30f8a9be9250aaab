"""Find the checkpoints in a directory, with their steps and identities, and verify them."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from bert_jax.differences import differences
from bert_jax.training.checkpoint_checksums import custom_metadata, verify
from bert_jax.training.distributed import agreed


class DamagedCheckpoint(ValueError):
    """A checkpoint is incomplete or differs from the saved one."""


def steps_in(directory: Path) -> list[int]:
    """Return the steps of all checkpoints in `directory`, including damaged ones, ascending."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if _is_step(name))


def intact_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints that pass a full check, ascending."""
    return [step for step in steps_in(directory) if verify(directory, step).problem is None]


def newest_intact_step(directory: Path) -> int | None:
    """Return the newest step with a checkpoint that passes a full check, None if there is none."""
    newest_first = reversed(steps_in(directory))
    return next((step for step in newest_first if verify(directory, step).problem is None), None)


def newest_step(directory: Path) -> int:
    """Return the step of the newest finished checkpoint in `directory`.

    Raises:
      ValueError: `directory` holds no finished checkpoint.
    """
    steps = steps_in(directory)
    if not steps:
        raise ValueError(f"{directory}: holds no finished checkpoint")
    return steps[-1]


def saved_run(directory: Path) -> tuple[int, Mapping[str, Any]] | None:
    """Return the step and identity of the newest checkpoint that passes a quick check, or None.

    All processes of a run must call this together, and all get the first one's answer, since
    another run may save a checkpoint in the meantime.
    """
    sound = (
        step
        for step in reversed(steps_in(directory))
        if verify(directory, step, quick=True).problem is None
    )
    step = agreed(next(sound, -1))
    return None if step < 0 else (step, identity_of(directory, step))


def identity_of(directory: Path, step: int) -> Mapping[str, Any]:
    """Return the `identity` that was passed to a checkpoint's `Checkpointer`.

    Raises:
      ValueError: the step has no finished checkpoint, or it is damaged; lists the others.
    """
    require_step(directory, step)
    outcome = verify(directory, step, quick=True)
    if outcome.problem is not None:
        raise damaged(directory, step, outcome.problem)
    identity: Mapping[str, Any] = custom_metadata(directory / str(step)).get("identity", {})
    return identity


def require_identity(
    directory: Path, step: int, identity: Mapping[str, Any], *, only: Container[str] | None = None
) -> None:
    """Refuse a checkpoint of another run.

    Args:
      identity: this run's identity.
      only: the keys to compare; None for all.

    Raises:
      ValueError: the checkpoint has another identity; lists the differences. See also
        `identity_of`.
    """
    stored = {
        key: value
        for key, value in identity_of(directory, step).items()
        if only is None or key in only
    }
    lines = differences(stored, json.loads(json.dumps(identity)))
    if lines:
        raise ValueError(
            f"the checkpoint in {directory} belongs to another run "
            "(checkpoint -> this config):\n  " + "\n  ".join(lines) + "\n"
            "Use the config it was written with, or another work_dir"
        )


def require_step(directory: Path, step: int) -> None:
    """Raise ValueError if `directory` has no finished checkpoint of `step`; list its steps."""
    steps = steps_in(directory)
    if step not in steps:
        listed = ", ".join(map(str, steps)) or "none"
        raise ValueError(f"{directory}: no checkpoint of step {step}. Available steps: {listed}")


def require_intact(directory: Path, step: int, *, parts: tuple[str, ...] = ()) -> None:
    """Raise DamagedCheckpoint unless a checkpoint passes a full check.

    Args:
      parts: the parts to check in addition to the metadata, such as `PARAMETERS`; () for all.
    """
    problem = verify(directory, step, parts=parts).problem
    if problem is not None:
        raise damaged(directory, step, problem)


def damaged(directory: Path, step: int, problem: str) -> DamagedCheckpoint:
    """Return the error that names a damaged checkpoint and lists the intact ones."""
    intact = ", ".join(map(str, intact_steps(directory))) or "none"
    return DamagedCheckpoint(
        f"{directory / str(step)}: the checkpoint of step {step} is damaged: {problem}. Restore it "
        f"from a copy, or use another step (intact: {intact}), for example with `bert-jax extract "
        f"{directory.parent} --step N --output DIR`"
    )


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name
