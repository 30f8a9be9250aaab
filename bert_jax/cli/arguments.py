"""Declare the options that several verbs share.

Imports no JAX: the command line imports this before it imports a verb.
"""

from __future__ import annotations

import argparse

from bert_jax.argument_parser import ArgumentParser


def add_work_dir_argument(
    parser: ArgumentParser, help: str = "work directory of a run or `import`"
) -> None:
    """Declare the work directory of the model, the first positional argument."""
    parser.add_argument("work_dir", metavar="WORKDIR", help=help)


def add_config_argument(parser: ArgumentParser, *, required: bool = True) -> None:
    """Declare `--config RECIPE`; `--config.a.b=value` overrides any key of it."""
    parser.add_option(
        "--config",
        "RECIPE",
        "recipe, such as tiny or sst2, or config file, FILE.py; any key of it is overridden as "
        "--config.section.key=value (None if a key may be empty)",
        required=required,
    )


def add_init_argument(parser: ArgumentParser, more: str = "") -> None:
    """Declare `--init`; `more` is added to its help text."""
    parser.add_option(
        "--init",
        "DIR",
        "work directory of `pretrain`, `import` or `finetune` with the parameters to start from "
        f"(--config.init_from){more}",
    )


def add_data_argument(parser: ArgumentParser) -> None:
    """Declare `--data` for the commands that train on a task."""
    parser.add_option(
        "--data",
        "FILE",
        "training file that replaces the config's, in the same format; for GLUE, the task's "
        "directory, with its validation and test files",
    )


def add_distributed_argument(parser: ArgumentParser) -> None:
    """Declare `--distributed`."""
    parser.add_flag(
        "--distributed",
        "connection to the other hosts of a Cloud TPU pod (automatic under Slurm, Open MPI "
        "and launch/local.sh)",
    )


def add_from_step_argument(parser: ArgumentParser) -> None:
    """Declare `--from-step`."""
    parser.add_option(
        "--from-step",
        "N",
        "step of a kept checkpoint to resume from instead of the newest; later checkpoints are "
        "moved to checkpoints-set-aside/ in the work directory. Applies once: after an "
        "interruption the same command resumes from the newest checkpoint",
        kind=_step,
    )


def _step(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a step. Give a whole number")
    return int(text)
