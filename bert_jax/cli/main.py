"""The `bert-jax` command: finds the verb, imports its module, and turns mistakes into words."""

from __future__ import annotations

import argparse
import importlib
import inspect
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from bert_jax.cli.arguments import check_paths, check_repeated
from bert_jax.cli.errors import (
    ignore_closed_loops,
    memory_refusal,
    named_by_the_system,
    panic_refusal,
    raise_lost_interrupts,
    unwritten_refusal,
)
from bert_jax.processes import return_freed_memory, tune_malloc_for_training
from bert_jax.validation import nearest
from bert_jax.version import __version__

USER_MISTAKE = 2
INTERRUPTED = 130  # what a shell reports for a command ended by SIGINT (a run that saved, too)
AddArguments = Callable[[argparse.ArgumentParser], None]
RunCommand = Callable[[argparse.Namespace], int]


@dataclass(frozen=True)
class Verb:
    """A word of the command line: a command, or a group of verbs.

    module: has the command's `add_arguments` and `run`, and its docstring describes the command.
    function: for a module with several commands, the name of the function that runs this one and
      whose docstring describes it; `add_NAME_arguments` declares its options.
    mixed: the positional arguments are optional, and options may appear between them.
    repeats: runs one program again and again, whose buffers are worth keeping.
    converts: passes on a model's weights, whose buffers are not.
    on_cpu: leaves accelerators alone, for exact float32 or for want of anything to compute.
    """

    help: str
    module: str = ""
    function: str = ""
    verbs: Mapping[str, Verb] = field(default_factory=dict)
    repeats: bool = False
    converts: bool = False
    on_cpu: bool = False
    mixed: bool = False


VERBS = {
    "prepare": Verb("cut a corpus into training records", "bert_jax.cli.prepare"),
    "train-tokenizer": Verb("learn a vocabulary from a corpus", "bert_jax.cli.train_tokenizer"),
    "demo-corpus": Verb(
        "write the English that comes with Python as a corpus",
        "bert_jax.cli.prepare",
        "demo_corpus",
    ),
    "pretrain": Verb(
        "pretrain a model, or go on where a run stopped", "bert_jax.cli.pretrain", repeats=True
    ),
    "finetune": Verb(
        "fine-tune a pretrained model on a task", "bert_jax.cli.finetune", repeats=True
    ),
    "evaluate": Verb(
        "score a fine-tuned model on a file of its task", "bert_jax.cli.evaluate", repeats=True
    ),
    "sweep": Verb(
        "fine-tune over a grid of dials and seeds, and report", "bert_jax.cli.sweep", repeats=True
    ),
    "import": Verb(
        "bring a model of another framework in",
        "bert_jax.cli.import_model",
        converts=True,
        on_cpu=True,
    ),
    "export": Verb(
        "take a model out, for other frameworks",
        "bert_jax.cli.export",
        converts=True,
        on_cpu=True,
    ),
    "extract": Verb(
        "make a work directory of one checkpoint",
        "bert_jax.cli.checkpoints",
        "extract_checkpoint",
        converts=True,
        on_cpu=True,
    ),
    "verify": Verb("compare two models, output by output", "bert_jax.cli.verify", on_cpu=True),
    "verify-checkpoint": Verb(
        "compare saved checkpoints with their checksums",
        "bert_jax.cli.checkpoints",
        "verify_checkpoints",
        on_cpu=True,
    ),
    "keys": Verb("print every key of a config and what it means", "bert_jax.cli.keys"),
    "inspect": Verb("print a model's parameters and FLOPs, part by part", "bert_jax.cli.inspect"),
    "plan": Verb(
        "compile a run for hardware that is not here: memory, collectives, ETA", "bert_jax.cli.plan"
    ),
    "bench": Verb(
        "measure one part of the system",
        verbs={
            "data": Verb("records to ready batches", "bert_jax.cli.bench_data"),
            "prepare": Verb("text to records", "bert_jax.cli.bench_prepare"),
            "step": Verb("the train step", "bert_jax.cli.bench_step", repeats=True),
        },
    ),
    "predict": Verb(
        "ask a trained model about texts, line by line", "bert_jax.cli.predict", repeats=True
    ),
    "fill-mask": Verb(
        "guess the masked words of a sentence", "bert_jax.cli.predict", "fill_mask", mixed=True
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    A `ValueError` or `OSError` is a user's mistake: its message goes to stderr without a traceback
    and the exit code is 2. An error caused by running out of memory in any library is handled in
    the same way. With BERT_JAX_TRACEBACK=1 in the environment the error is raised.
    """
    _log_to_stderr()
    own_process = argv is None
    if own_process:
        raise_lost_interrupts()
        ignore_closed_loops()
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _dispatch(words.copy(), own_process)
    except KeyboardInterrupt:
        print("\nbert-jax: interrupted", file=sys.stderr)
        return INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic in a Rust library is not an Exception
        failed = _explain(error, words)
        if failed is None and not own_process:
            raise
        if failed is None:
            traceback.print_exc()
        if own_process and "jax" in sys.modules:
            from bert_jax.training.distributed import leave

            leave(failed or 1, lost=_lost_process(error) is not None)
        return failed or 1
    try:
        sys.stdout.flush()  # here, where a reader that has gone is still ours to handle
    except BrokenPipeError:
        _silence()
        return code or 1
    return code


def _explain(error: BaseException, words: Sequence[str]) -> int | None:
    """Print a message for a user's mistake or a lack of memory and return the exit code.

    Returns None for other errors without printing them.
    """
    if isinstance(error, BrokenPipeError):  # the reader of our output, such as `head`, has gone
        _silence()
        return 1
    if os.environ.get("BERT_JAX_TRACEBACK") == "1":
        return None
    verb = " ".join(words[: 2 if words[:1] == ["bench"] else 1])
    # Check for a full disk first: TensorStore reports it as RESOURCE_EXHAUSTED, which XLA uses for
    # memory.
    file = unwritten_refusal(error, verb) or named_by_the_system(error)
    refusal = file or memory_refusal(error, verb) or panic_refusal(error) or _lost_process(error)
    if refusal is None and not isinstance(error, ValueError | OSError):
        return None
    print(f"bert-jax: error: {refusal or error}", file=sys.stderr)
    if not file and not _raised_here(error):
        print("(set BERT_JAX_TRACEBACK=1 to see where it was raised)", file=sys.stderr)
    return USER_MISTAKE


def _lost_process(error: BaseException) -> str | None:
    if "jax" not in sys.modules:
        return None
    from bert_jax.training.distributed import lost_process

    return lost_process(error)


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str], own_process: bool) -> int:
    program, verbs = ["bert-jax"], VERBS
    while True:
        if not words or words[0] in ("-h", "--help"):
            print(_overview(" ".join(program), verbs))
            return 0 if words else USER_MISTAKE
        if words[0] == "--version":
            print(f"bert-jax {__version__}")
            return 0
        name = words.pop(0)
        if name not in verbs:
            raise ValueError(
                f"{' '.join(program)} has no verb {name!r}; {nearest(name, verbs)}. "
                f"`{' '.join(program)} --help` lists them."
            )
        program.append(name)
        verb = verbs[name]
        if verb.module:
            return _run(verb, " ".join(program), words, own_process)
        verbs = dict(verb.verbs)


def _run(verb: Verb, program: str, words: list[str], own_process: bool) -> int:
    if verb.on_cpu and own_process:
        os.environ.setdefault("JAX_PLATFORMS", "cpu")  # read when JAX is imported
    parser = make_parser(verb, program)
    # Overrides leave before argparse sees them: it would read a value holding a space as a
    # positional argument.
    overrides = [word for word in words if word.startswith("--config.")]
    words = [word for word in words if not word.startswith("--config.")]
    options = [option for action in parser._actions for option in action.option_strings]
    for word in words:
        name = word.partition("=")[0]
        if name.startswith("--") and len(name) > 2 and name not in options:
            hint = _key_hint(word) if "--config" in options else ""
            raise ValueError(hint or f"{program} has no option {name}; {nearest(name, options)}")
    if overrides and "--config" not in options:
        raise ValueError(f"{overrides[0]}: {program} has no configuration. Leave the option out.")
    check_repeated(parser, words)
    args = parser.parse_intermixed_args(words) if verb.mixed else parser.parse_args(words)
    check_paths(parser, args)
    args.config_overrides = overrides
    # JAX is imported by now, but starts its threads when first used.
    if verb.repeats and own_process:
        tune_malloc_for_training()
    if verb.converts and own_process:
        return_freed_memory()
    _, _, run = _command(verb)
    return run(args)


def _key_hint(word: str) -> str:
    """Return how to set a key of the config that was given without "--config.", or ""."""
    if not re.fullmatch(r"(--)?\w+(\.\w+)+=.*", word):
        return ""
    return f"{word}: not an option. To set a key, use --config.{word.removeprefix('--')}"


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, and so printed like all others."""

    def error(self, message: str) -> NoReturn:
        problem = message.removeprefix("argument ")
        if any("--config" in action.option_strings for action in self._actions):
            problem = _key_hint(problem.removeprefix("unrecognized arguments: ")) or problem
        raise ValueError(f"{problem}. See `{self.prog} --help`.")


def make_parser(verb: Verb, program: str) -> argparse.ArgumentParser:
    """Return the parser for a verb's arguments; `program` is the command before them."""
    description, add_arguments, _ = _command(verb)
    parser = _Parser(
        prog=program,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    return parser


def _command(verb: Verb) -> tuple[str | None, AddArguments, RunCommand]:
    """Import a verb's module; return its description, and what declares its options and runs it."""
    module = importlib.import_module(verb.module)
    if not verb.function:
        return module.__doc__, module.add_arguments, module.run
    run = getattr(module, verb.function)
    return inspect.getdoc(run), getattr(module, f"add_{verb.function}_arguments"), run


def _overview(program: str, verbs: Mapping[str, Verb]) -> str:
    width = max(map(len, verbs)) + 2
    lines = [f"usage: {program} VERB [options]", "", "verbs:"]
    lines += [f"  {name:{width}}{verb.help}" for name, verb in verbs.items()]
    return "\n".join([*lines, "", f"`{program} VERB --help` describes a verb and its options."])


def _raised_here(error: BaseException) -> bool:
    """Whether this package refused in its own words, not a library below it in the library's."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    # Not __name__, which is "__main__" for a module that was started with `python -m`.
    package = None if frame is None else frame.tb_frame.f_globals.get("__package__")
    return package is not None and package.split(".")[0] == "bert_jax"


def _log_to_stderr() -> None:
    """Show this package's progress and everyone's warnings, without other libraries' chatter."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("bert_jax").setLevel(logging.INFO)
    # Orbax logs the traceback of a failed save in every thread, in addition to raising the error.
    if os.environ.get("BERT_JAX_TRACEBACK") != "1":
        logging.getLogger("absl").addFilter(_has_no_traceback)


class _Formatter(logging.Formatter):
    """Print messages as they are, with "warning: " before warnings."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        return f"warning: {text}" if record.levelno == logging.WARNING else text


def _has_no_traceback(record: logging.LogRecord) -> bool:
    return not record.exc_info


if __name__ == "__main__":
    sys.exit(main())
