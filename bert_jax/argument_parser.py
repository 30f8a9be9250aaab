"""Parse command-line arguments, raise ValueError for user errors and check that paths are local."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from bert_jax.local_paths import check_local, check_path, is_url
from bert_jax.validation import nearest

_OVERRIDE = "--config."
# The arguments whose values may be URLs of objects in buckets, by verb.
_URL_ARGUMENTS = {
    "add-words": "work_dir --words --output",
    "bench data": "--corpus",
    "bench prepare": "--input --tokenizer",
    "compare": "work_dir other --treebank --plot --output",
    "compare-runs": "runs --page --plot --output",
    "evaluate": "work_dir --data --output --predictions --text --minimal-pairs --plot",
    "export": "work_dir --output",
    "extract": "work_dir --output",
    "fill-mask": "--work-dir",
    "finetune": "--init --data",
    "follow": "work_dir",
    "import": "source --output --tokenizer",
    "inspect": "models --page",
    "look": "work_dir --output",
    "predict": "work_dir --input --output",
    "prepare": "--input --held-out-input --output --tokenizer --decontaminate",
    "pretrain": "--init --corpus",
    "probe": "work_dir --treebank --plot --output",
    "prune-heads": "work_dir --data --plot --output",
    "status": "work_dir",
    "sweep": "--init --data --output --report-only",
    "tokenize": "tokenizer",
    "train-tokenizer": "--input --output",
    "verify": "first second",
    "verify-checkpoint": "directory",
}
# The reasons why the values of these arguments may not be URLs of objects in buckets.
_WHY_LOCAL = {
    "--config": "A config file is Python code, which is run only from a file system.",
    "--tfds-data-dir": "TensorFlow Datasets reads this directory itself.",
}
URL_ARGUMENTS = frozenset(
    f"{verb} {argument}" for verb, text in _URL_ARGUMENTS.items() for argument in text.split()
)


def free_text(text: str) -> str:
    """Return `text` unchanged; as an argparse type, this marks arguments that are not paths.

    Arguments of any other type are rejected if they begin with `scheme://`. This way, paths in new
    options are checked without having to be listed anywhere.
    """
    return text


def option_name(parameter: str) -> str:
    """Return the option that sets a parameter, such as "--max-length" for "max_length"."""
    return f"--{parameter.replace('_', '-')}"


def option_names(*parameters: str) -> dict[str, str]:
    """Return a dict from each parameter to the option that sets it."""
    return {parameter: option_name(parameter) for parameter in parameters}


def at_least(minimum: int) -> Callable[[str], int]:
    """Return an argparse type for whole numbers greater than or equal to `minimum`."""

    def parse(text: str) -> int:
        with suppress(ValueError):
            if (number := int(text)) >= minimum:
                return number
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {minimum}, not {text!r}"
        )

    return parse


def above_zero(text: str) -> float:
    """Convert an argument to a number greater than 0."""
    with suppress(ValueError):
        if 0 < (number := float(text)) < math.inf:
            return number
    raise argparse.ArgumentTypeError(f"expected a number greater than 0, not {text!r}")


def _destination(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


class ArgumentParser(argparse.ArgumentParser):
    """A parser that raises ValueError instead of exiting, and collects config overrides."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self._current_names: dict[str, str] = {}
        self._output_files: list[str] = []

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error message as a ValueError."""
        problem = message.removeprefix("argument ")
        if "--config" in self.options:
            problem = _key_hint(problem.removeprefix("unrecognized arguments: ")) or problem
        raise ValueError(f"{problem}. See `{self.prog} --help`.")

    @property
    def options(self) -> list[str]:
        """The names of all options."""
        return [option for action in self._actions for option in action.option_strings]

    def add_option(
        self,
        name: str,
        metavar: str,
        help: str,
        *,
        kind: Any = None,
        default: object = None,
        required: bool = False,
    ) -> None:
        """Add an option with one value, and append the default, if any, to its help text.

        `kind` converts the argument to the value, like `type` in `add_argument`.
        """
        text = _with_default(help, default)
        self.add_argument(
            name, metavar=metavar, help=text, type=kind, default=default, required=required
        )

    def add_output_file(
        self, name: str, help: str, *, kind: Any = None, required: bool = False
    ) -> None:
        """Add an option for the path of an output file; see `output_files`."""
        self._output_files.append(name)
        self.add_option(name, "FILE", help, kind=kind, required=required)

    def output_files(self, args: argparse.Namespace) -> dict[str, str | os.PathLike[str]]:
        """Return a dict from option to path for the output files in the parsed arguments."""
        given = {name: getattr(args, _destination(name)) for name in self._output_files}
        return {name: path for name, path in given.items() if path not in (None, "-")}

    def given_values(self, args: argparse.Namespace) -> list[tuple[str, str]]:
        """Return a (text before the value, value) pair of strings for each option that was given.

        For example, ("--input ", "a.txt") or ("--config.work_dir=", "runs/mine").
        """
        given = {
            action.option_strings[-1]: getattr(args, action.dest)
            for action in self._actions
            if action.option_strings and hasattr(args, action.dest)
            if not action.choices and getattr(args, action.dest) != action.default
        }
        values = [
            (f"{option} ", os.fspath(text))
            for option, value in given.items()
            for text in _values(value)
        ]
        overrides = (word.partition("=") for word in args.config_overrides)
        return values + [(f"{key}=", value) for key, _, value in overrides]

    def accept_former_name(self, former: str, current: str) -> None:
        """Accept an option's former name, which the help text does not list."""
        assert current in self.options and former not in self.options
        self._current_names[former] = current

    def add_number(
        self, name: str, help: str, default: int | None = None, *, minimum: int | None = None
    ) -> None:
        """Add an option that takes a whole number. If `minimum` is given, reject smaller ones."""
        kind = int if minimum is None else at_least(minimum)
        self.add_option(name, "N", help, kind=kind, default=default)

    def add_choice(
        self,
        name: str,
        choices: Iterable[str],
        help: str,
        *,
        default: str | None = None,
        required: bool = False,
    ) -> None:
        """Add an option that takes one of several words."""
        text = _with_default(help, default)
        self.add_argument(
            name, choices=tuple(choices), help=text, default=default, required=required
        )

    def add_list(
        self,
        name: str,
        metavar: str,
        help: str,
        *,
        kind: Any = None,
        default: list[str] | None = None,
        required: bool = False,
    ) -> None:
        """Add an option that takes one or more values and may be repeated.

        `kind` converts each argument to a value, like `type` in `add_argument`.
        """
        self.add_argument(
            name,
            metavar=metavar,
            help=help,
            type=kind,
            default=default,
            required=required,
            nargs="+",
            action="extend",
        )

    def add_flag(self, name: str, help: str) -> None:
        """Add an option that takes no value."""
        self.add_argument(name, action="store_true", help=help)

    def parse_words(self, words: Sequence[str], *, mixed: bool = False) -> argparse.Namespace:
        """Parse and check command-line arguments.

        Args:
          words: the command-line arguments after the verb.
          mixed: whether options may appear between positional arguments.

        Returns:
          The parsed arguments. Arguments that begin with "--config." are in `config_overrides`.

        Raises:
          ValueError: an option is unknown or repeated, an argument is missing or invalid, or a path
            is not local.
        """
        # argparse would treat an override whose value contains a space as a positional argument.
        all_words = words
        overrides = [word for word in words if word.startswith(_OVERRIDE)]
        words = [self._with_current_name(w) for w in words if not w.startswith(_OVERRIDE)]
        self._check_known(words)
        if overrides and "--config" not in self.options:
            raise ValueError(
                f"{overrides[0]}: {self.prog} does not read a config. Omit the option."
            )
        _check_values(all_words)
        check_repeated(self, words)
        args = self.parse_intermixed_args(words) if mixed else self.parse_args(words)
        check_paths(self, args)
        args.config_overrides = overrides
        return args

    def _with_current_name(self, word: str) -> str:
        name, equals, value = word.partition("=")
        return f"{self._current_names.get(name, name)}{equals}{value}"

    def _check_known(self, words: Sequence[str]) -> None:
        options = self.options
        for word in words:
            name = word.partition("=")[0]
            if name.startswith("--") and len(name) > 2 and name not in options:
                hint = _key_hint(word) if "--config" in options else ""
                names = nearest(name, options)
                if "--config" in options and names.startswith("available"):
                    names += f". To set a key, use {_OVERRIDE}KEY=VALUE"
                raise ValueError(hint or f"{self.prog} has no option {name}; {names}")


def _check_values(words: Sequence[str]) -> None:
    """Reject an override whose value is a separate argument, as in `--config.seed 1`.

    Raises:
      ValueError: an override has no "=", and the argument after it could be its value.
    """
    for word, following in itertools.pairwise(words):
        if word.startswith(_OVERRIDE) and "=" not in word and not following.startswith("--"):
            raise ValueError(f"{word}: missing value. Write {word}={following}")


def _with_default(help: str, default: object) -> str:
    return help if default in (None, "") else f"{help} (default: %(default)s)"


def check_paths(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Reject arguments that begin with `scheme://`, unless they may be URLs of objects.

    Raises:
      ValueError: an argument begins with a scheme that is not allowed there. The message begins
        with the argument's option.
    """
    verb = parser.prog.removeprefix("bert-jax ")
    for action in parser._actions:
        if action.type is free_text:
            continue
        argument = (action.option_strings or [action.dest])[-1]
        check = check_path if f"{verb} {argument}" in URL_ARGUMENTS else check_local
        for value in _values(getattr(args, action.dest, None)):
            try:
                check(value, _name(action))
            except ValueError as error:
                if not is_url(value) or argument not in _WHY_LOCAL:
                    raise
                raise ValueError(f"{error} {_WHY_LOCAL[argument]}") from error


def check_repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Reject a repeated option if argparse would keep only its last value.

    Raises:
      ValueError: an option is repeated, although it does not collect values (`action="extend"`).
    """
    single = {
        option: action.option_strings[-1]
        for action in parser._actions
        for option in action.option_strings
        if isinstance(action, argparse._StoreAction)
    }
    before_dashes = words[: words.index("--")] if "--" in words else words
    counts = Counter(
        single[name] for word in before_dashes if (name := word.partition("=")[0]) in single
    )
    if repeated := [name for name, count in counts.items() if count > 1]:
        raise ValueError(f"{repeated[0]} is given {counts[repeated[0]]} times. Specify it once.")


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


def _key_hint(word: str) -> str:
    """Return a hint if an argument is a config key without "--config.", or "" otherwise."""
    if not re.fullmatch(r"(--)?\w+(\.\w+)+=.*", word):
        return ""
    return f"{word}: not an option. To set a key, use {_OVERRIDE}{word.removeprefix('--')}"
