"""Check every verb's command line, and declare options that several verbs share.

Imports no JAX: the command line calls this before it imports a verb.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from bert_jax.local_paths import check_local


def free_text(text: str) -> str:
    """Return an argument unchanged: an argparse type that marks the argument as not being a path.

    Every argument of another type is refused if it begins with `scheme://`, so new options are
    checked without being listed anywhere.
    """
    return text


def check_paths(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse arguments that begin with `scheme://`: only local paths can be read and written.

    Raises:
      ValueError: an argument begins with `scheme://`; the message begins with its option.
    """
    for action in parser._actions:
        if action.type is free_text:
            continue
        for value in _values(getattr(args, action.dest, None)):
            check_local(value, _name(action))


def check_repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse a repeated option of which argparse would use only the last value.

    Raises:
      ValueError: an option is repeated; options that collect values (`action="extend"`) may be.
    """
    single = {
        option: action.option_strings[-1]
        for action in parser._actions
        for option in action.option_strings
        if isinstance(action, argparse._StoreAction)
    }
    before_dashes = words[: words.index("--")] if "--" in words else words
    given = Counter(
        single[name] for word in before_dashes if (name := word.partition("=")[0]) in single
    )
    if repeated := [name for name, count in given.items() if count > 1]:
        raise ValueError(f"{repeated[0]} is given {given[repeated[0]]} times. Give it once.")


def _values(value: object) -> Iterator[str | os.PathLike[str]]:
    if isinstance(value, str | os.PathLike):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)


def _name(action: argparse.Action) -> str:
    if action.option_strings:
        return action.option_strings[-1]
    return action.metavar if isinstance(action.metavar, str) else action.dest


def add_config_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Give a verb `--config RECIPE`; `--config.a.b=value` overrides any key of it."""
    parser.add_argument(
        "--config",
        required=required,
        metavar="RECIPE",
        help="a recipe, such as tiny or sst2, or a config file, FILE.py; any key of it is "
        "overridden as --config.section.key=value (None where a key may be empty)",
    )


def add_override(overrides: Sequence[str], key: str, value: str, option: str) -> list[str]:
    """Return the overrides with one more, which was given as a command-line option.

    Raises:
      ValueError: the overrides already contain the key.
    """
    word = f"--config.{key}"
    for other in overrides:
        if other.partition("=")[0] == word:
            raise ValueError(f"{option}={value} and {other} set the same key. Give one of them.")
    return [*overrides, f"{word}={value}"]


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
