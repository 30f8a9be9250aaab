"""Read a config file and `--config.key=value` arguments into a dataclass."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import traceback
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from difflib import SequenceMatcher
from functools import reduce
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_dict import FieldReference

from bert_jax.conversion import to_dataclass, without_none
from bert_jax.local_paths import check_local
from bert_jax.validation import nearest


def with_every_key(cls: type, values: Any) -> ConfigDict:
    """Copy a config with each key `cls` declares in it, defaults filled in and types fixed.

    The copy knows the type of every key, also of those that hold None, so that any of them can be
    overridden from the command line. What does not fit `cls` is kept for `to_dataclass` to refuse.
    """
    if dataclasses.is_dataclass(values):
        values = {field.name: getattr(values, field.name) for field in dataclasses.fields(values)}
    hints = typing.get_type_hints(cls)
    tree = ConfigDict({key: value for key, value in values.items() if key not in hints})
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        if field.name in values:
            value = _on_default(field, values[field.name])
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = None if field.default is dataclasses.MISSING else field.default
        tree[field.name] = _with_type(hints[field.name], value)
    return tree


def _on_default(field: dataclasses.Field[Any], value: Any) -> Any:
    """A section over the field's own default, which may be another than that of its class."""
    if field.default_factory is dataclasses.MISSING or not isinstance(value, (Mapping, ConfigDict)):
        return value
    default = field.default_factory()
    if not dataclasses.is_dataclass(default):
        return value
    own = {each.name: getattr(default, each.name) for each in dataclasses.fields(default)}
    return own | {key: value[key] for key in value}


def _with_type(hint: Any, value: Any) -> Any:
    """Return `value` as a ConfigDict should hold it: a section, or a field that knows its type."""
    hint, optional = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and value is None and not optional:
        value = {}
    is_section = isinstance(value, (Mapping, ConfigDict)) or dataclasses.is_dataclass(value)
    if dataclasses.is_dataclass(hint):
        return with_every_key(cast(type, hint), value) if is_section else value
    if origin in (dict, Mapping):
        if not is_section:
            return value
        return ConfigDict({key: _with_type(arguments[1], value[key]) for key in value})
    kind = type(arguments[0]) if origin is Literal else origin or hint
    if kind is float and type(value) is int:
        value = float(value)
    if kind is tuple and isinstance(value, list):
        value = tuple(value)
    return FieldReference(value, field_type=kind) if value is None or type(value) is kind else value


T = TypeVar("T")


# Keys that tell which command a config file is for; and which folder the other one's are in.
_KIND_OF = {"phases": "pretrain", "masking": "pretrain"}
_KIND_OF |= dict.fromkeys(("glue", "sentences", "choices", "tags", "spans"), "finetune")
_OTHER = {"pretrain": "finetune", "finetune": "pretrain"}
_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


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
      overrides: arguments such as `--config.optimizer.peak_learning_rate=1e-4`, at most one per
        key.

    Raises:
      ValueError: the file does not exist, a key is given twice or is unknown (the message suggests
        similar keys), or a value does not parse as its key's type or is refused by the dataclass;
        the message contains the key's dotted path.
    """
    _check_repeated(overrides)
    content = _read_file(path)
    _check_kind(cls, content, path)
    tree = with_every_key(cls, content)
    left_out = [word for word in overrides if word.endswith("=None") and _is_section(word, tree)]
    for word in left_out:
        _leave_out(word, tree, cls)
    kept = [word for word in overrides if word not in left_out]
    return to_dataclass(cls, _apply_overrides(tree, kept).to_dict())


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


def _check_repeated(overrides: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for word in overrides:
        key = word.partition("=")[0]
        if key in given:
            raise ValueError(f"{key} is given twice: {given[key]} and {word}. Give it once.")
        given[key] = word


def _read_file(path: str) -> ConfigDict:
    check_local(path, "--config")
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
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
        place = f"{file}:{lines[-1]}" if lines else file
        raise ValueError(f"{place}: {type(error).__name__}: {error}") from error
    if not isinstance(config, ConfigDict):
        raise ValueError(f"{file}: get_config() must return a ConfigDict, got {config!r}")
    return config


def _check_kind(cls: type, content: ConfigDict, path: str) -> None:
    """Refuses a config of the other kind, of which every key would be unknown."""
    own = {each.name for each in fields(cls)}
    for key, kind in _KIND_OF.items():
        if key in content and key not in own:
            raise ValueError(
                f"--config: {path} is for `bert-jax {kind}`, as its {key!r} tells; this command "
                f"expects one as in configs/{_OTHER[kind]}"
            )


def _is_section(word: str, tree: ConfigDict) -> bool:
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    for section in sections:
        tree = tree.get(section)
        if not isinstance(tree, ConfigDict):
            return False
    return isinstance(tree.get(name), ConfigDict)


def _leave_out(word: str, tree: ConfigDict, cls: type) -> None:
    """Takes a section out, where it is one of several or may be left out."""
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    hint: Any = cls
    for section in sections:
        hint = _inside(hint, section)
        tree = tree[section]
    hint, _ = without_none(hint)
    if get_origin(hint) in (dict, Mapping):
        del tree[name]
        return
    if not without_none(get_type_hints(hint)[name])[1]:
        raise ValueError(f"{word}: this section cannot be left out")
    del tree[name]


def _inside(hint: Any, name: str) -> Any:
    """The type of what is called `name` in a section of this type."""
    hint, _ = without_none(hint)
    return get_args(hint)[1] if get_origin(hint) in (dict, Mapping) else get_type_hints(hint)[name]


def _apply_overrides(tree: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    keys = list(_leaves(tree))
    last = {}
    for word in overrides:
        key, equals, value = word.removeprefix("--config.").partition("=")
        if key not in keys:
            empty = [each for each in keys if key.startswith(f"{each}.")]
            if any(_type_of(each, tree) is type(None) for each in empty):
                raise ValueError(_empty_section(word))
            raise ValueError(_unknown_key(key, keys))
        if not equals:
            raise ValueError(f"--config.{key}: write the value as --config.{key}=VALUE")
        if value != "None" and _type_of(key, tree) is type(None):
            raise ValueError(_empty_section(word))
        last[key] = value
    words = [f"--config.{key}={value}" for key, value in last.items() if value != "None"]
    argv = ["bert-jax", *words]
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", tree, flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except flags.Error as error:
        raise ValueError(_unreadable(str(error), tree, last)) from error
    # config_flags reads numbers and truths, but has no word for a key that holds nothing.
    emptied = {key: None for key, value in last.items() if value == "None"}
    values.config.update_from_flattened_dict(emptied)
    return values.config


def _empty_section(word: str) -> str:
    return (
        f"{word}: a section that the config file leaves empty, and that can only be filled in it: "
        "copy the file, or begin with one that has the section"
    )


def _leaves(tree: ConfigDict, prefix: str = "") -> Iterator[str]:
    for key in tree:
        value = tree[key]
        if isinstance(value, ConfigDict) and len(value):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _type_of(key: str, tree: ConfigDict) -> type:
    *sections, name = key.split(".")
    section: ConfigDict = reduce(getattr, sections, tree)
    return section.get_type(name)


def _unreadable(error: str, tree: ConfigDict, given: Mapping[str, str]) -> str:
    """What is wrong with a value, from the complaint of config_flags, which is Python's own."""
    for key, value in given.items():
        if error.startswith(f"flag --config.{key}="):
            kind = _type_of(key, tree)
            return f"--config.{key}={value}: expected {_KINDS.get(kind, kind.__name__)}"
    return error


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
