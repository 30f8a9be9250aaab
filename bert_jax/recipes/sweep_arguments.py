"""Load the configs of a sweep from command-line arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bert_jax.argument_parser import option_name
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.sweep_configs import value_at
from bert_jax.finetuning.sweep_directory import Keep
from bert_jax.finetuning.sweep_place import check_sweep_output
from bert_jax.recipes.command_line import finetune_config
from bert_jax.validation import renamed_in_errors

# Config keys that the sweep itself sets, and the options to use instead.
_SWEPT = {
    "work_dir": "--output",
    "batch_size": "--batch-sizes",
    "optimizer.peak_learning_rate": "--learning-rates",
    "num_epochs": "--epochs",
}
# A sweep uses consecutive seeds, starting with the config's seed, so `--config.seed` is valid.
_NOT_VARIED = _SWEPT | {"seed": "--seeds"}
# A dict from names of parameters in the library's error messages to command-line options.
_OPTIONS = {
    "batch_sizes": "--batch-sizes",
    "learning_rates": "--learning-rates",
    "num_epochs": "--epochs",
    "num_seeds": "--seeds",
    "first_seed": "--config.seed",
    "Set keep": "Set --keep",
    "another output": "another --output",
}
_BRACKETS = {"(": ")", "[": "]", "{": "}"}


# The options for training, which a sweep that only writes a report does not accept.
_TRAINING = (
    *("config", "init", "data", "vary", "batch_sizes", "learning_rates", "epochs", "seeds"),
    "keep",
)


def grid_of(
    batch_sizes: Sequence[int] | None,
    learning_rates: Sequence[float] | None,
    num_epochs: Sequence[int] | None,
    num_seeds: int | None,
    first_seed: int,
) -> Grid:
    """Return a grid with the given values, and the defaults for missing values."""
    default = Grid()
    return Grid(
        batch_sizes=tuple(batch_sizes or default.batch_sizes),
        learning_rates=tuple(learning_rates or default.learning_rates),
        num_epochs=tuple(num_epochs or default.num_epochs),
        num_seeds=default.num_seeds if num_seeds is None else num_seeds,
        first_seed=first_seed,
    )


def check_report_only(options: Mapping[str, Any]) -> None:
    """Check the options of a sweep that only writes a report.

    Args:
      options: the values of the command's options, keyed by the option's name with underscores.

    Raises:
      ValueError: an option applies only to training, or the output directory is missing for a
        report on several sweeps.
    """
    given = [option_name(name) for name in _TRAINING if options[name] is not None]
    if words := [*given, *options["config_overrides"]]:
        raise ValueError(f"{words[0]}: --report-only does not train. Omit the option")
    if len(options["report_only"]) > 1 and not options["output"]:
        raise ValueError("--output is missing: a report on multiple sweeps needs its own directory")


@dataclass(frozen=True)
class SweepArguments:
    """The command-line arguments that select the configs of a sweep, as specified by the user.

    Attributes:
      config: a recipe or a config file.
      overrides: arguments such as "--config.max_length=64".
      init: the work directory of a model to initialize from, or None.
      data: a training file that replaces the one in the config, or None.
      output: the directory of the sweep.
      vary: arguments such as "tuning.top_layers=-1,2,0".

    Raises:
      ValueError: the config or the output directory is missing.
    """

    config: str
    overrides: Sequence[str]
    init: str | None
    data: str | None
    output: str
    vary: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("config", "output"):
            if not getattr(self, name):
                raise ValueError(
                    f"--{name} is missing: a sweep needs --config FILE.py --output DIR"
                )

    def load(self) -> tuple[FinetuneConfig, dict[str, list[Any]]]:
        """Load the config, and return it along with the values of each varied key.

        In the returned config, each of these keys has its first value.

        Raises:
          ValueError: a key is set by the sweep itself, is set twice, or has missing or duplicate
            values; `load_config` fails; or the output directory cannot be used.
        """
        for word in self.overrides:
            key = word.removeprefix("--config.").partition("=")[0]
            if key in _SWEPT:
                raise ValueError(f"{word}: a sweep sets this key itself. Use {_SWEPT[key]}.")
        texts = self._texts()
        first = {key: choices[0] for key, choices in texts.items()}
        with self._naming_varied_keys():
            vary = {
                key: [self._value(key, {**first, key: text}) for text in choices]
                for key, choices in texts.items()
            }
            config = self._load(first, self.data)
        for word in self.vary:
            values = vary[word.partition("=")[0]]
            if any(values.count(value) > 1 for value in values):
                raise ValueError(f"--vary {word}: contains duplicates. Remove them.")
        check_sweep_output(self.output, "--output")
        return config, vary

    @contextmanager
    def naming_options(self) -> Iterator[None]:
        """Rewrite errors raised in a `with` block to name the options that the user specified."""
        with self._naming_varied_keys(), renamed_in_errors(_OPTIONS):
            yield

    @contextmanager
    def _naming_varied_keys(self) -> Iterator[None]:
        """Make errors about a varied key begin with `--vary KEY=` and the invalid value(s)."""
        try:
            yield
        except ValueError as error:
            message = str(error)
            for word in self.vary:
                key = word.partition("=")[0]
                begins = rf"(config[\w.]*: )?(--config\.|config\.)?{re.escape(key)}(?=[=: ])"
                if match := re.match(begins, message):
                    rest = message[match.end() :]
                    given = key if rest.startswith("=") else word
                    raise ValueError(f"--vary {given}{rest}") from error
            raise

    def command(self, grid: Grid, keep: Keep) -> str:
        """Return a command that repeats the sweep, with the defaults spelled out."""
        words = ["bert-jax", "sweep", "--config", self.config]
        words += ["--init", self.init] if self.init else []
        words += ["--data", self.data] if self.data else []
        words += ["--output", self.output, *self.overrides]
        words += ["--vary", *self.vary] if self.vary else []
        words += ["--batch-sizes", *map(str, grid.batch_sizes)]
        words += ["--learning-rates", *map(str, grid.learning_rates)]
        words += ["--epochs", *map(str, grid.num_epochs), "--seeds", str(grid.num_seeds)]
        words += ["--keep", keep]
        return shlex.join(words)

    def _texts(self) -> dict[str, list[str]]:
        """Return each varied key's values as text, and check that nothing else sets the key."""
        others = {word.partition("=")[0]: word for word in self.overrides}
        if self.init:
            others["--config.init_from"] = f"--init {self.init}"
        texts: dict[str, list[str]] = {}
        for word in self.vary:
            key, equals, values = word.partition("=")
            if not equals:
                raise ValueError(f"--vary {word}: missing values. Write --vary {key}=VALUE,VALUE")
            if key in _NOT_VARIED:
                option = _NOT_VARIED[key]
                raise ValueError(f"--vary {word}: a sweep sets this key itself. Use {option}.")
            if key in texts:
                raise ValueError(
                    f"--vary {word}: {key} is varied twice. List all its values in one --vary."
                )
            if other := others.get(f"--config.{key}"):
                raise ValueError(
                    f"--vary {word} and {other} set the same key. Use only one of them"
                )
            texts[key] = split_values(values, f"--vary {word}")
        return texts

    def _load(self, texts: Mapping[str, str], data: str | None) -> FinetuneConfig:
        words = [f"--config.{key}={text}" for key, text in texts.items()]
        overrides = [f"--config.work_dir={self.output}", *self.overrides, *words]
        return finetune_config(self.config, overrides, self.init, data)

    def _value(self, key: str, texts: Mapping[str, str]) -> Any:
        """Return the value of a key, parsed from `texts`, which has one value per varied key."""
        value = value_at(self._load(texts, None), key)
        if self.data and value_at(self._load(texts, self.data), key) != value:
            raise ValueError(
                f"--vary {key} and --data {self.data} set the same key. Use only one of them"
            )
        return value


def split_values(text: str, name: str) -> list[str]:
    """Split text at commas, except those inside quotes or brackets.

    The quotes around a whole value are removed.

    >>> split_values("1, (2, 3), 'a,b'", "--vary KEY")
    ['1', '(2, 3)', 'a,b']

    Args:
      text: the values.
      name: the argument that contains them, for the error message.

    Raises:
      ValueError: a quote or bracket is not closed.
    """
    values, open_brackets, quote = [""], list[str](), ""
    for character in text:
        if character == "," and not open_brackets and not quote:
            values.append("")
            continue
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"" and (open_brackets or not values[-1].strip()):
            quote = character
        elif character in _BRACKETS:
            open_brackets.append(_BRACKETS[character])
        elif character in open_brackets[-1:]:
            open_brackets.pop()
        values[-1] += character
    if quote or open_brackets:
        raise ValueError(
            f"{name}: {(quote or open_brackets[-1])} is missing. If a value contains quotes or "
            "brackets, enclose it in quotes"
        )
    return [_unquoted(value.strip()) for value in values]


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] in "'\"" and value.find(value[0], 1) == len(value) - 1
    return value[1:-1] if quoted else value
