"""List the verbs of the command line, describe them, and parse their arguments."""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bert_jax.argument_parser import ArgumentParser
from bert_jax.validation import nearest
from bert_jax.version import __version__

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
      repeats: whether the command runs the same compiled program repeatedly. If so, keeping freed
        buffers saves time.
      converts: whether the command converts a model's weights. If so, freed buffers are returned to
        the system to save memory.
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


_BENCHMARKS = {
    "data": Verb("time making batches from records", "bert_jax.cli.bench_data"),
    "prepare": Verb("time making records from text", "bert_jax.cli.bench_prepare"),
    "step": Verb("time the train step", "bert_jax.cli.bench_step", repeats=True),
}
VERBS = {
    "prepare": Verb("tokenize and pack a corpus into training records", "bert_jax.cli.prepare"),
    "train-tokenizer": Verb("train a tokenizer on a corpus", "bert_jax.cli.train_tokenizer"),
    "demo-corpus": Verb(
        "write a corpus of the English documentation that comes with Python",
        "bert_jax.cli.prepare",
        "demo_corpus",
    ),
    "pretrain": Verb(
        "pretrain a model, or resume a stopped run", "bert_jax.cli.pretrain", repeats=True
    ),
    "finetune": Verb(
        "fine-tune a pretrained model on a task", "bert_jax.cli.finetune", repeats=True
    ),
    "follow": Verb(
        "fine-tune the checkpoints of a pretraining run as they appear",
        "bert_jax.cli.pretrain",
        "follow_run",
        repeats=True,
    ),
    "status": Verb(
        "print whether a run is alive, its progress and its goodput",
        "bert_jax.cli.checkpoints",
        "run_status",
        on_cpu=True,
    ),
    "evaluate": Verb(
        "score a model on its task, on text or on minimal pairs",
        "bert_jax.cli.evaluate",
        repeats=True,
    ),
    "sweep": Verb(
        "fine-tune over a grid of hyperparameters and seeds, and write a report",
        "bert_jax.cli.sweep",
        repeats=True,
    ),
    "import": Verb(
        "convert a model from another framework to a work directory",
        "bert_jax.cli.import_model",
        converts=True,
        on_cpu=True,
    ),
    "add-words": Verb(
        "add words to a model's vocabulary",
        "bert_jax.cli.checkpoints",
        "add_words_to_model",
        converts=True,
        on_cpu=True,
    ),
    "export": Verb(
        "convert a model for other frameworks", "bert_jax.cli.export", converts=True, on_cpu=True
    ),
    "extract": Verb(
        "copy one checkpoint of a run to a new work directory",
        "bert_jax.cli.checkpoints",
        "extract_checkpoint",
        converts=True,
        on_cpu=True,
    ),
    "verify": Verb("compare the outputs of two models", "bert_jax.cli.verify", on_cpu=True),
    "verify-checkpoint": Verb(
        "check saved checkpoints against their checksums",
        "bert_jax.cli.checkpoints",
        "verify_checkpoints",
        on_cpu=True,
    ),
    "keys": Verb("print every config key and its meaning", "bert_jax.cli.keys"),
    "inspect": Verb(
        "print parameter and FLOP counts by part, or describe a corpus",
        "bert_jax.cli.inspect",
    ),
    "plan": Verb(
        "compile a run for other hardware, and print its memory and time", "bert_jax.cli.plan"
    ),
    "bench": Verb("measure the speed of one part of the system", verbs=_BENCHMARKS),
    "predict": Verb(
        "run a trained model on texts, one result per line", "bert_jax.cli.predict", repeats=True
    ),
    "look": Verb(
        "show what happens inside a model when it reads a text", "bert_jax.cli.look", "look_at_text"
    ),
    "tokenize": Verb(
        "show how a text is split into tokens and words",
        "bert_jax.cli.train_tokenizer",
        "tokenize_text",
    ),
    "show-batch": Verb(
        "show a pretraining batch as text, with its masks and pairs",
        "bert_jax.cli.look",
        "show_rows",
    ),
    "probe": Verb("measure what a model knows about syntax", "bert_jax.cli.look", "probe_model"),
    "compare": Verb(
        "compare the layers of two models or checkpoints", "bert_jax.cli.look", "compare_models"
    ),
    "compare-runs": Verb(
        "compare the curves and the configs of runs", "bert_jax.cli.compare_runs", on_cpu=True
    ),
    "prune-heads": Verb(
        "measure how many heads a task needs", "bert_jax.cli.look", "prune_model", repeats=True
    ),
    "fill-mask": Verb(
        "predict the masked words of a sentence", "bert_jax.cli.predict", "fill_mask", mixed=True
    ),
}


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


def select_verb(
    program: str, words: list[str], verbs: Mapping[str, Verb]
) -> tuple[Verb, str] | str:
    """Return the verb selected by a command line, and the program's name followed by that verb.

    If no verb is selected, the result is the text to print: the version or an overview.

    Args:
      program: the program's name.
      words: the command-line arguments; the names of verbs are removed.
      verbs: the verbs, keyed by name.

    Raises:
      ValueError: there is no such verb.
    """
    while words and words[0] not in ("-h", "--help"):
        if words[0] == "--version":
            return f"bert-jax {__version__}"
        name = words.pop(0)
        verb = find_verb(name, verbs, program)
        program = f"{program} {name}"
        if verb.module:
            return verb, program
        verbs = verb.verbs
    return overview(program, verbs)
