"""The keys of a config: complete them from a dataclass and override them."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from typing import Any, Literal, cast, get_args, get_origin

from absl import flags
from ml_collections import ConfigDict, config_flags
from ml_collections.config_dict import FieldReference

from bert_jax.conversion import config_keys, values_of, without_none
from bert_jax.validation import unknown_key

_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


def with_every_key(cls: type, values: Any) -> ConfigDict:
    """Copy a config with each key `cls` declares in it, defaults filled in and types fixed.

    The copy knows the type of every key, also of those that hold None, so that any of them can be
    overridden from the command line. Values that do not fit `cls` are kept for `to_dataclass` to
    refuse.
    """
    if dataclasses.is_dataclass(values):
        values = values_of(values)
    keys = config_keys(cls)
    tree = ConfigDict({key: value for key, value in values.items() if key not in keys})
    for key in keys.values():
        if key.name in values:
            value = _on_default(key.default, values[key.name])
        else:
            value = None if key.default is dataclasses.MISSING else key.default
        tree[key.name] = _with_type(key.hint, value)
    return tree


def _on_default(default: Any, value: Any) -> Any:
    """Return a section completed from its key's default, which may differ from its class's."""
    if not dataclasses.is_dataclass(default) or not isinstance(value, (Mapping, ConfigDict)):
        return value
    return values_of(default) | {key: value[key] for key in value}


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


def leave_out_sections(tree: ConfigDict, words: Sequence[str], cls: type) -> list[str]:
    """Delete the sections that words such as "phases.phase2=None" leave out.

    Returns:
      The other words.

    Raises:
      ValueError: a key is given twice, or the run needs the section.
    """
    _check_repeated(words)
    left_out = [word for word in words if word.endswith("=None") and _is_section(word, tree)]
    for word in left_out:
        _leave_out(word, tree, cls)
    return [word for word in words if word not in left_out]


def _check_repeated(words: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        if key in given:
            raise ValueError(f"{key} is given twice: {given[key]} and {word}. Give it once.")
        given[key] = word


def _is_section(word: str, tree: ConfigDict) -> bool:
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    for section in sections:
        tree = tree.get(section)
        if not isinstance(tree, ConfigDict):
            return False
    return isinstance(tree.get(name), ConfigDict)


def _leave_out(word: str, tree: ConfigDict, cls: type) -> None:
    """Delete a section that is optional or one of several."""
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    hint: Any = cls
    for section in sections:
        hint = _inside(hint, section)
        tree = tree[section]
    hint, _ = without_none(hint)
    if get_origin(hint) in (dict, Mapping):
        del tree[name]
        return
    if not without_none(config_keys(hint)[name].hint)[1]:
        raise ValueError(f"{word}: this section cannot be left out")
    del tree[name]


def _inside(hint: Any, name: str) -> Any:
    """Return the type of a key in a section of type `hint`."""
    hint, _ = without_none(hint)
    if get_origin(hint) in (dict, Mapping):
        return get_args(hint)[1]
    return config_keys(hint)[name].hint


def apply_values(tree: ConfigDict, values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Return a complete config as nested dicts, with values by dotted key set in it.

    Args:
      tree: the config, from `with_every_key`.
      values: Python values. Those that are sections are merged; None leaves out a section.
      cls: the dataclass that the config is for.

    Raises:
      ValueError: a key is set twice, or a section that the run needs is left out.
    """
    flat: dict[str, Any] = {}
    for key, value in _flattened(values):
        if key in flat:
            raise ValueError(f"{key} is set twice: {flat[key]!r} and {value!r}. Set it once.")
        flat[key] = value
    for key in [key for key, value in flat.items() if value is None and _is_section(key, tree)]:
        _leave_out(key, tree, cls)
        del flat[key]
    result: dict[str, Any] = tree.to_dict()
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = result
        for inner in sections:
            if not isinstance(section.get(inner), dict):  # an empty section or an unknown key
                section[inner] = {}
            section = section[inner]
        section[name] = value
    return result


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values, with paths as strings."""
    for key, value in values.items():
        if dataclasses.is_dataclass(value):
            value = values_of(value)
        if isinstance(value, Mapping | ConfigDict) and len(value):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, os.fspath(value) if isinstance(value, os.PathLike) else value


def apply_words(tree: ConfigDict, overrides: Sequence[str]) -> ConfigDict:
    """Return a config with words such as "--config.seed=1" applied; the prefix is optional.

    Raises:
      ValueError: a key is unknown, or a value does not parse as its key's type.
    """
    keys = list(_leaves(tree))
    last = {}
    for word in overrides:
        key, equals, value = word.removeprefix("--config.").partition("=")
        if key not in keys:
            empty = [each for each in keys if key.startswith(f"{each}.")]
            if any(_type_of(each, tree) is type(None) for each in empty):
                raise ValueError(_empty_section(word))
            raise ValueError(f"--config.{key}{unknown_key(key, keys)}")
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
    # config_flags cannot read None.
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
    """Return an error message that replaces the one of config_flags, which is Python's own."""
    for key, value in given.items():
        if error.startswith(f"flag --config.{key}="):
            kind = _type_of(key, tree)
            return f"--config.{key}={value}: expected {_KINDS.get(kind, kind.__name__)}"
    return error
