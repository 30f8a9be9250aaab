"""Options shared by the commands that train or evaluate."""

from __future__ import annotations

import argparse


def add_data_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--data` for the commands that train on a task."""
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="training file that replaces the config's, in the same format; for GLUE, the task's "
        "directory, with its validation and test files",
    )


def add_distributed_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--distributed`."""
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="join the other hosts of a Cloud TPU pod (Slurm, Open MPI and launch/local.sh are "
        "recognised without it)",
    )


def add_from_step_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--from-step`."""
    parser.add_argument(
        "--from-step",
        type=_step,
        metavar="N",
        help="step of a kept checkpoint to resume from instead of the newest; later checkpoints "
        "are moved to checkpoints-set-aside/ in the work directory. Applies once: after an "
        "interruption the same command resumes from the newest checkpoint",
    )


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step. Give a whole number")
    return int(text)
