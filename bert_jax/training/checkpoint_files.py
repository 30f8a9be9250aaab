"""Find and verify checkpoints, and choose which to keep and which to resume from.

A run resumes from the newest intact checkpoint, or from an earlier one on request.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_jax.files import sync_directory, write_file
from bert_jax.json_files import read_json_object
from bert_jax.storage.partial import remote_files
from bert_jax.training.checkpoint_checksums import custom_metadata, fetch, verify
from bert_jax.training.distributed import agreed
from bert_jax.training.metrics_log import LOG_NAME
from bert_jax.validation import differences


@dataclass(frozen=True)
class CheckpointConfig:
    """Settings that determine which checkpoints are saved and kept.

    Attributes:
      every_steps: the number of steps between checkpoints. A run also saves its state after the
        last step and when it is stopped.
      keep_last: the number of most recent checkpoints to keep.
      keep_every: checkpoints are also kept if their step is a multiple of this number; 0 for none.
      keep_best: the number of checkpoints with the best held-out `best_metric` that are also kept;
        0 for none. To find them, every evaluated state is saved.
      best_metric: the held-out metric by which checkpoints are compared.
      lower_is_better: whether a lower `best_metric` is better.
    """

    every_steps: int = 1_000
    keep_last: int = 2
    keep_every: int = 0
    keep_best: int = 1
    best_metric: str = "mlm_loss"
    lower_is_better: bool = True

    def __post_init__(self) -> None:
        if self.every_steps < 1 or self.keep_last < 1:
            raise ValueError("checkpoint.every_steps and checkpoint.keep_last must be at least 1.")
        if self.keep_every < 0 or self.keep_best < 0:
            raise ValueError("checkpoint.keep_every and checkpoint.keep_best must be 0 or more.")
        if self.best_metric.endswith("accuracy") and self.lower_is_better:
            raise ValueError(
                f"checkpoint.best_metric={self.best_metric!r} with lower_is_better=True would keep "
                "the worst checkpoints. Set checkpoint.lower_is_better=False."
            )


@dataclass(frozen=True)
class EvaluatedLater:
    """An Orbax preservation policy that keeps checkpoints whose evaluation is still due.

    Attributes:
      at: returns whether a given step is to be evaluated.
    """

    at: Callable[[int], bool]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return, for each checkpoint, whether to keep it."""
        return [not checkpoint.metrics and self.at(checkpoint.step) for checkpoint in checkpoints]


@dataclass(frozen=True)
class RollbackTargets:
    """The checkpoints to which a run may roll back.

    Attributes:
      bound: the newest step to which the run would roll back if it diverged now.
      discarded: the steps whose states an earlier rollback has discarded.
    """

    bound: int
    discarded: range = range(0)

    def newest(self, steps: Iterable[int]) -> int | None:
        """Return the newest of `steps` to which the run would roll back now, or None."""
        return max((step for step in self.permitted(steps) if step <= self.bound), default=None)

    def permitted(self, steps: Iterable[int]) -> list[int]:
        """Return the steps in `steps` that have not been discarded, in ascending order."""
        return sorted(step for step in steps if step not in self.discarded)


@dataclass(frozen=True)
class NeededToRollBack:
    """An Orbax preservation policy that keeps the checkpoints to which a run may roll back.

    Attributes:
      interim: returns whether the checkpoint at a given step was saved only because of an
        interruption. A run never rolls back to such a checkpoint; see `Checkpointer.save`.
      targets: returns the checkpoints to which the run could roll back now. The newest of them and
        all later checkpoints are kept. If the result is None, no checkpoint is kept for this
        purpose.
    """

    interim: Callable[[int], bool]
    targets: Callable[[], RollbackTargets | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> Sequence[bool]:
        """Return, for each checkpoint, whether to keep it."""
        targets = self.targets()
        if targets is None:
            return [False] * len(checkpoints)
        steps = [each.step for each in checkpoints if not self.interim(each.step)]
        newest = targets.newest(steps)
        needed = {step for step in targets.permitted(steps) if newest is None or step >= newest}
        return [each.step in needed for each in checkpoints]


class DamagedCheckpoint(ValueError):
    """A checkpoint is incomplete or differs from what was saved."""


def steps_in(directory: Path) -> list[int]:
    """Return the steps of all checkpoints in `directory`, even damaged ones, in ascending order."""
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if _is_step(name))


def intact_steps(directory: Path) -> list[int]:
    """Return the steps of the checkpoints that pass a check, in ascending order.

    The check is a full one, except for checkpoints that are in a bucket.
    """
    return [
        step
        for step in steps_in(directory)
        if verify(directory, step, quick=_is_in_bucket(directory / str(step))).problem is None
    ]


def _is_in_bucket(checkpoint: Path) -> bool:
    return remote_files(checkpoint).url is not None


def newest_intact_step(directory: Path) -> int | None:
    """Return the newest step whose checkpoint passes a full check, or None if there is none."""
    newest_first = reversed(steps_in(directory))
    return next((step for step in newest_first if verify(directory, step).problem is None), None)


def newest_step(directory: Path) -> int:
    """Return the step of the newest complete checkpoint in `directory`.

    Raises:
      ValueError: `directory` has no complete checkpoint.
    """
    steps = steps_in(directory)
    if not steps:
        raise ValueError(f"{directory}: contains no complete checkpoint.")
    return steps[-1]


def saved_run(directory: Path) -> tuple[int, Mapping[str, Any]] | None:
    """Return the step and identity of the newest checkpoint that passes a quick check, or None.

    All processes of a run must call this together. All of them return the first process's result,
    since another run may save a checkpoint in the meantime.
    """
    intact = (
        step
        for step in reversed(steps_in(directory))
        if verify(directory, step, quick=True).problem is None
    )
    step = agreed(next(intact, -1))
    return None if step < 0 else (step, identity_of(directory, step))


def identity_of(directory: Path, step: int) -> Mapping[str, Any]:
    """Return the run identity that was stored with a checkpoint.

    Raises:
      ValueError: there is no complete checkpoint at this step, or it is damaged; the message lists
        the steps that can be used instead.
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
    """Check that a checkpoint belongs to this run.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      identity: this run's identity.
      only: the keys to compare; if None, all of them.

    Raises:
      ValueError: the checkpoint has a different identity (the message lists the differences), or is
        missing or damaged.
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
            "Use the config that the checkpoint was saved with, or another work_dir."
        )


def require_step(directory: Path, step: int) -> None:
    """Raise a ValueError that lists the available steps if there is no checkpoint at `step`."""
    steps = steps_in(directory)
    if step not in steps:
        listed = ", ".join(map(str, steps)) or "none"
        raise ValueError(f"{directory}: no checkpoint at step {step}. Available steps: {listed}.")


def require_intact(directory: Path, step: int, *, parts: tuple[str, ...] = ()) -> None:
    """Fetch a checkpoint from a bucket if necessary, and check it in full.

    Args:
      directory: the directory that holds the checkpoints.
      step: the checkpoint's step.
      parts: the parts to check in addition to the metadata, such as `PARAMETERS`; () means all
        parts.

    Raises:
      DamagedCheckpoint: a file is missing or differs from what was saved.
    """
    fetch(directory, step, parts)
    problem = verify(directory, step, parts=parts).problem
    if problem is not None:
        raise damaged(directory, step, problem)


def damaged(directory: Path, step: int, problem: str) -> DamagedCheckpoint:
    """Return an error that names a damaged checkpoint and lists the intact ones."""
    intact = ", ".join(map(str, intact_steps(directory))) or "none"
    return DamagedCheckpoint(
        f"{directory / str(step)}: the checkpoint at step {step} is damaged: {problem}. Restore it "
        f"from a copy, or use another step (intact: {intact}), for example with `bert-jax extract "
        f"{directory.parent} --step N --output DIR`."
    )


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdecimal() and str(int(name)) == name


# Checkpoints are set aside in this directory, next to a run's `checkpoints` directory.
ASIDE_NAME = "checkpoints-set-aside"
_FROM_STEP_NAME = "from-step.json"
_NOTHING, _REFUSED = -1, -2


@dataclass(frozen=True)
class Recovery:
    """The checkpoint that a run resumes from.

    Attributes:
      step: the checkpoint's step, or None if there is no checkpoint yet. Its files have just been
        verified.
      lines: lines to print for the user; empty on all processes except the first.
    """

    step: int | None
    lines: tuple[str, ...] = ()


def recover(directory: Path, identity: Mapping[str, Any], from_step: int | None = None) -> Recovery:
    """Choose the checkpoint that a run resumes from, and set aside those that it must not use.

    Damaged checkpoints are moved to `ASIDE_NAME` next to `directory`, and so are all checkpoints
    after `from_step` if it is given. Nothing is deleted. The caller must already have locked the
    work directory against other runs. All processes of a run must call this together.

    Args:
      directory: the directory that holds the checkpoints.
      identity: the run's identity, or the part of it that is known so far. The identity of the
        checkpoint at `from_step` must match it, which is checked before any checkpoint is moved.
      from_step: the step to go back to. This happens only once: if the same command is repeated
        after an interruption, the run resumes from its newest checkpoint.

    Raises:
      ValueError: all checkpoints are damaged, or this run has no intact checkpoint at `from_step`.
    """
    import jax

    if jax.process_index() != 0:
        step = agreed(_NOTHING)
        if step == _REFUSED:
            raise ValueError(
                f"{directory}: the run cannot resume from this directory. See process 0's message."
            )
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
        if newest is None:
            fetch(directory, step)
        problem = verify(directory, step, quick=newest is not None).problem
        if problem is not None:
            damage[step] = problem
        elif newest is None:
            newest = step
    if damage and newest is None:
        raise DamagedCheckpoint(
            f"{directory}: all checkpoints are damaged ({_listed(damage)}). Restore one from a "
            "copy, or move the directory away to start over."
        )
    if damage:
        aside = _set_aside(directory, sorted(damage))
        resumed = "" if newest is None or max(damage) < newest else f"; resuming from step {newest}"
        lines.append(f"warning    damaged checkpoints moved to {aside}: {_listed(damage)}{resumed}")
    return Recovery(newest, tuple(lines))


def _go_back(directory: Path, identity: Mapping[str, Any], step: int) -> list[str]:
    """Set aside all checkpoints after `step`, unless an earlier command has already done so."""
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
        raise ValueError(f"{record}: the file cannot be read ({error}). Remove it.") from error


def _set_aside(directory: Path, steps: Sequence[int]) -> Path:
    """Move the checkpoints at `steps` out of `directory`, and return their new directory."""
    aside = directory.parent / ASIDE_NAME
    aside.mkdir(exist_ok=True)
    # Move the newest checkpoint first, so that after an interruption, the remaining checkpoints are
    # always older than those already moved.
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
