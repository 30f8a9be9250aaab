"""Compare saved checkpoints with the checksums recorded when they were saved.

    bert-jax verify-checkpoint runs/mine
    bert-jax verify-checkpoint runs/mine --step 400000

Prints one line per checkpoint and exits with code 1 if any of them is damaged. Every command also
verifies the checkpoint that it loads, and training resumes from the newest intact one.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bert_jax.runs.work_dir import CHECKPOINTS_NAME
from bert_jax.training.checkpoint_checksums import REMOVED, Verification, verify
from bert_jax.training.checkpoint_files import require_step, steps_in

DAMAGED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `verify-checkpoint`."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="work directory, its checkpoints directory or a single checkpoint in it",
    )
    parser.add_argument("--step", type=int, metavar="N", help="step to verify (default: all steps)")


def run(args: argparse.Namespace) -> int:
    """Print the state of every checkpoint."""
    directory, steps = _checkpoints(Path(args.directory))
    if args.step is not None:
        require_step(directory, args.step)
        steps = [args.step]
    damaged = False
    width = len(f"{steps[-1]:,}")
    for step in steps:
        outcome = verify(directory, step)
        damaged = damaged or outcome.problem not in (None, REMOVED)
        print(f"step {step:>{width},}  {_description(outcome)}", flush=True)
    return DAMAGED if damaged else 0


def _checkpoints(directory: Path) -> tuple[Path, list[int]]:
    """Return the checkpoints directory that an argument refers to, and the steps to verify.

    Raises:
      ValueError: the directory holds no checkpoints.
    """
    nested = directory / CHECKPOINTS_NAME
    for place in (nested, directory):
        steps = steps_in(place)
        if steps:
            return place, steps
    if directory.name.isdecimal() and int(directory.name) in steps_in(directory.parent):
        return directory.parent, [int(directory.name)]
    raise ValueError(
        f"{directory}: holds no checkpoint. Give the work directory of a run or of `import`, or "
        f"the `{CHECKPOINTS_NAME}` directory in it"
    )


def _description(outcome: Verification) -> str:
    if outcome.problem == REMOVED:
        return "removed during the check; a run removes older checkpoints when it saves"
    if outcome.problem is not None:
        return f"damaged: {outcome.problem}"
    if not outcome.has_checksums:
        return "readable; saved by an earlier version, which recorded no checksums"
    return f"intact   {outcome.num_files} files, {outcome.num_bytes / 1e6:,.1f} MB"
