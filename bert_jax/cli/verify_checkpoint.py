"""Compare saved checkpoints with the checksums recorded when they were saved.

    bert-jax verify-checkpoint runs/mine
    bert-jax verify-checkpoint runs/mine --step 400000

Prints one line per checkpoint and exits with code 1 if any of them is damaged. Every command also
verifies the checkpoint that it loads, and training resumes from the newest intact one.
"""

from __future__ import annotations

import argparse

from bert_jax.runs.checkpoints import checkpoints_at
from bert_jax.training.checkpoint_checksums import REMOVED, Verification, verify

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
    directory, steps = checkpoints_at(args.directory, args.step)
    damaged = False
    width = len(f"{steps[-1]:,}")
    for step in steps:
        outcome = verify(directory, step)
        damaged = damaged or outcome.problem not in (None, REMOVED)
        print(f"step {step:>{width},}  {_description(outcome)}", flush=True)
    return DAMAGED if damaged else 0


def _description(outcome: Verification) -> str:
    if outcome.problem == REMOVED:
        return "removed during the check; a run removes older checkpoints when it saves"
    if outcome.problem is not None:
        return f"damaged: {outcome.problem}"
    if not outcome.has_checksums:
        return "readable; saved by an earlier version, which recorded no checksums"
    return f"intact   {outcome.num_files} files, {outcome.num_bytes / 1e6:,.1f} MB"
