"""The configuration door: a config file and `--config.key=value` words in, a dataclass out."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import traceback
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, TypeVar

from absl import flags
from ml_collections import ConfigDict, config_flags

from bert_jax.cli.config_tree import with_every_key
from bert_jax.conversion import to_dataclass, to_plain
from bert_jax.data.files import write_file
from bert_jax.suggestions import nearest

T = TypeVar("T")

RESOLVED_NAME = "config.json"


def add_config_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Give a verb `--config FILE.py[:ARGUMENT]`; `--config.a.b=value` overrides any key of it."""
    parser.add_argument(
        "--config",
        required=required,
        metavar="FILE.py",
        help="a config file; any key of it is overridden as --config.section.key=value "
        "(None where a key may be empty)",
    )


def load_config(cls: type[T], path: str, overrides: Sequence[str] = ()) -> T:
    """Read a config file, apply overrides, and return the result as the dataclass `cls`.

    Args:
      cls: the frozen dataclass the file's keys must fit. Keys the file leaves out take its defaults
        and can be overridden like any other.
      path: a Python file with `get_config()` returning a ConfigDict; `FILE.py:ARGUMENT` calls
        `get_config("ARGUMENT")`.
      overrides: words such as `--config.optimizer.peak_learning_rate=1e-4`; the last one wins.

    Raises:
      ValueError: no such file, an unknown key (the nearest are named), a value that does not parse
        as its key's type, or one the dataclass refuses; the message holds the key's dotted path.
    """
    tree = with_every_key(cls, _read_file(path))
    return to_dataclass(cls, _apply_overrides(tree, overrides).to_dict())


def write_resolved(config: Any, work_dir: str | os.PathLike[str]) -> Path:
    """Write every key of a config dataclass to `work_dir`/config.json, whole or not at all.

    `to_dataclass(cls, json.loads(path.read_text()))` gives the same dataclass back.
    """
    directory = Path(work_dir)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / RESOLVED_NAME
    write_file(path, json.dumps(to_plain(config), indent=2) + "\n")
    return path


def _read_file(path: str) -> ConfigDict:
    file, *argument = path.split(":", 1)
    if not Path(file).is_file():
        others = [str(other) for other in sorted(Path(file).parent.glob("*.py"))]
        hint = f"; {nearest(file, others)}" if others else ""
        raise ValueError(f"--config: there is no file {file}{hint}")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"--config: {file} is not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        config = module.get_config(*argument)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
        place = f"{file}:{lines[-1]}" if lines else file
        raise ValueError(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{file}: get_config() must return a ConfigDict, got {config!r}")
    return config


def _apply_overrides(tree: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    keys = list(_leaves(tree))
    last = {}
    for word in overrides:
        key, equals, value = word.removeprefix("--config.").partition("=")
        if key not in keys:
            raise ValueError(_unknown_key(key, keys))
        if not equals:
            raise ValueError(f"--config.{key}: write the value as --config.{key}=VALUE")
        last[key] = value
    words = [f"--config.{key}={value}" for key, value in last.items() if value != "None"]
    argv = ["bert-jax", *words]
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", tree, flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except flags.Error as error:
        raise ValueError(str(error)) from error
    # config_flags reads numbers and truths, but has no word for a key that holds nothing.
    emptied = {key: None for key, value in last.items() if value == "None"}
    values.config.update_from_flattened_dict(emptied)
    return values.config


def _leaves(tree: ConfigDict, prefix: str = "") -> Iterator[str]:
    for key in tree:
        value = tree[key]
        if isinstance(value, ConfigDict) and len(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _unknown_key(key: str, keys: Sequence[str]) -> str:
    inside = [other for other in keys if other.startswith(f"{key}.")]
    if inside:
        return f"--config.{key} is a section; its keys are {', '.join(inside)}"
    name = key.rpartition(".")[2]
    elsewhere = [other for other in keys if other.rpartition(".")[2] == name]
    if elsewhere:
        elsewhere.sort(key=lambda other: -SequenceMatcher(None, key, other).ratio())
        return f"--config.{key}: no such key, but there is {', '.join(elsewhere)}"
    return f"--config.{key}: no such key; {nearest(key, keys)}"
