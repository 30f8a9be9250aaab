"""Declare the options that several verbs share.

Imports no JAX: the command line imports this before it imports a verb.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_number(
    parser: argparse._ActionsContainer,
    name: str,
    help: str,
    *,
    kind: Callable[[str], float] = int,
    default: float | None = None,
    metavar: str = "N",
) -> None:
    """Declare an option for a number; its help text ends with the default, if there is one."""
    text = help if default is None else f"{help} (default: %(default)s)"
    parser.add_argument(name, type=kind, default=default, metavar=metavar, help=text)


def add_config_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Declare `--config RECIPE`; `--config.a.b=value` overrides any key of it."""
    parser.add_argument(
        "--config",
        required=required,
        metavar="RECIPE",
        help="a recipe, such as tiny or sst2, or a config file, FILE.py; any key of it is "
        "overridden as --config.section.key=value (None where a key may be empty)",
    )


def add_init_argument(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Declare `--init`; `more` is added to its help text."""
    parser.add_argument(
        "--init",
        metavar="DIR",
        help="work directory of `pretrain`, `import` or `finetune` with the parameters to start "
        f"from (--config.init_from){more}",
    )


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
        help="connection to the other hosts of a Cloud TPU pod (automatic under Slurm, Open MPI "
        "and launch/local.sh)",
    )


def add_from_step_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--from-step`."""
    add_number(
        parser,
        "--from-step",
        "step of a kept checkpoint to resume from instead of the newest; later checkpoints are "
        "moved to checkpoints-set-aside/ in the work directory. Applies once: after an "
        "interruption the same command resumes from the newest checkpoint",
        kind=_step,
    )


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step. Give a whole number")
    return int(text)
