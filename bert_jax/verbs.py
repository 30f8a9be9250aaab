"""Find the verbs of a command line, describe them, and parse their arguments."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bert_jax.argument_parser import ArgumentParser
from bert_jax.validation import nearest

AddArguments = Callable[[ArgumentParser], None]
RunCommand = Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Verb:
    """A command-line verb, which is either a command or a group of verbs.

    Attributes:
      help: the phrase that describes the verb in a list of verbs.
      module: the module that contains the command's `add_arguments` and `run`. Its docstring
        describes the command.
      function: for a module with multiple commands, the name of the function that runs this
        command. Its docstring describes the command, and `add_NAME_arguments` declares its options.
      verbs: the verbs in a group, keyed by name.
      repeats: whether the command runs the same program repeatedly, in which case freed buffers are
        worth keeping.
      converts: whether the command converts a model's weights, in which case freed buffers are not
        worth keeping.
      on_cpu: whether the command leaves accelerators unused, because it needs exact float32 or
        computes nothing.
      mixed: whether options may appear between the positional arguments, all of which are optional.
    """

    help: str
    module: str = ""
    function: str = ""
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    repeats: bool = False
    converts: bool = False
    on_cpu: bool = False
    mixed: bool = False


def find_verb(name: str, verbs: Mapping[str, Verb], program: str) -> Verb:
    """Return the verb with this name.

    Args:
      name: the verb's name, as given on the command line.
      verbs: the available verbs, keyed by name.
      program: the words before the verb on the command line, for error messages.

    Raises:
      ValueError: there is no such verb. The message suggests similar names.
    """
    if name not in verbs:
        raise ValueError(
            f"{program} has no verb {name!r}; {nearest(name, verbs)}. "
            f"`{program} --help` lists all verbs."
        )
    return verbs[name]


def overview(program: str, verbs: Mapping[str, Verb]) -> str:
    """Return a help text that lists the verbs."""
    width = max(map(len, verbs)) + 2
    lines = [f"usage: {program} VERB [options]", "", "verbs:"]
    lines += [f"  {name:{width}}{verb.help}" for name, verb in verbs.items()]
    return "\n".join([*lines, "", f"`{program} VERB --help` describes a verb and its options."])


def make_parser(verb: Verb, program: str) -> ArgumentParser:
    """Return the parser for a command's arguments.

    Args:
      verb: the command.
      program: the words before the arguments on the command line, for messages.
    """
    description, add_arguments, _ = _import_command(verb)
    parser = ArgumentParser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    return parser


def run_function(verb: Verb) -> RunCommand:
    """Return the function that runs a command and returns its exit code."""
    return _import_command(verb)[2]


def _import_command(verb: Verb) -> tuple[str | None, AddArguments, RunCommand]:
    """Import a command's module, and return (description, add_arguments, run)."""
    module = importlib.import_module(verb.module)
    if not verb.function:
        return module.__doc__, module.add_arguments, module.run
    run = getattr(module, verb.function)
    return inspect.getdoc(run), getattr(module, f"add_{verb.function}_arguments"), run
