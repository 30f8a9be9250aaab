"""Fill in a config's missing keys from its dataclass, and override keys."""

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

_KINDS = {int: "an integer", float: "a number", bool: "true or false"}


def with_all_keys(cls: type, values: Any) -> ConfigDict:
    """Return a copy of a config with all keys of a dataclass, including defaults and types.

    Every key has a type, even if its value is None, so that it can be overridden from the command
    line. Values of the wrong type are kept; `to_dataclass` rejects them later.

    Args:
      cls: the dataclass.
      values: a mapping or an instance of `cls`.
    """
    if dataclasses.is_dataclass(values):
        values = values_of(values)
    keys = config_keys(cls)
    tree = ConfigDict({key: value for key, value in values.items() if key not in keys})
    for key in keys.values():
        if key.name in values:
            value = _merge_default(key.default, values[key.name])
        else:
            value = None if key.default is dataclasses.MISSING else key.default
        tree[key.name] = _with_type(key.hint, value)
    return tree


def _merge_default(default: Any, value: Any) -> Any:
    """Fill in a section's missing keys from the section's own default value.

    This value may differ from the defaults of the section's class.
    """
    if not dataclasses.is_dataclass(default) or not isinstance(value, (Mapping, ConfigDict)):
        return value
    return values_of(default) | {key: value[key] for key in value}


def _with_type(hint: Any, value: Any) -> Any:
    """Convert a value to the form that a ConfigDict stores: a section, or a field with a type."""
    hint, optional = without_none(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint) and value is None and not optional:
        value = {}
    is_section = isinstance(value, (Mapping, ConfigDict)) or dataclasses.is_dataclass(value)
    if dataclasses.is_dataclass(hint):
        return with_all_keys(cast(type, hint), value) if is_section else value
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
    """Delete the sections that overrides such as "phases.phase2=None" remove.

    Args:
      tree: the config, which is modified in place.
      words: the overrides.
      cls: the config's dataclass.

    Returns:
      The remaining overrides.

    Raises:
      ValueError: a key is set twice, or an override removes a required section.
    """
    _check_repeated(words)
    left_out = [word for word in words if word.endswith("=None") and _is_section(word, tree)]
    for word in left_out:
        _leave_out(word, tree, cls)
    return [word for word in words if word not in left_out]


def _check_repeated(words: Sequence[str]) -> None:
    words_by_key: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0]
        if key in words_by_key:
            raise ValueError(f"{key} is set twice: {words_by_key[key]} and {word}. Set it once")
        words_by_key[key] = word


def _is_section(word: str, tree: ConfigDict) -> bool:
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    for section in sections:
        tree = tree.get(section)
        if not isinstance(tree, ConfigDict):
            return False
    return isinstance(tree.get(name), ConfigDict)


def _leave_out(word: str, tree: ConfigDict, cls: type) -> None:
    """Delete a section, which must be optional or one of the entries in a mapping."""
    *sections, name = word.removeprefix("--config.").partition("=")[0].split(".")
    hint: Any = cls
    for section in sections:
        hint = _key_type(hint, section)
        tree = tree[section]
    hint, _ = without_none(hint)
    if get_origin(hint) in (dict, Mapping):
        del tree[name]
        return
    if not without_none(config_keys(hint)[name].hint)[1]:
        raise ValueError(f"{word}: this section is required and cannot be None")
    del tree[name]


def _key_type(hint: Any, name: str) -> Any:
    """Return the type of the key `name` in a section of type `hint`."""
    hint, _ = without_none(hint)
    if get_origin(hint) in (dict, Mapping):
        return get_args(hint)[1]
    return config_keys(hint)[name].hint


def apply_values(tree: ConfigDict, values: Mapping[str, Any], cls: type) -> dict[str, Any]:
    """Return a config as nested dicts, with overrides applied.

    Args:
      tree: the config, from `with_all_keys`.
      values: a dict from dotted keys to Python values. Sections are merged; None removes a section.
      cls: the config's dataclass.

    Raises:
      ValueError: a key is set twice, or a required section is set to None.
    """
    flat: dict[str, Any] = {}
    for key, value in _flattened(values):
        if key in flat:
            raise ValueError(f"{key} is set twice: {flat[key]!r} and {value!r}. Set it once")
        flat[key] = value
    for key in [key for key, value in flat.items() if value is None and _is_section(key, tree)]:
        _leave_out(key, tree, cls)
        del flat[key]
    result: dict[str, Any] = tree.to_dict()
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = result
        for subsection in sections:
            if not isinstance(section.get(subsection), dict):  # The section is empty or unknown.
                section[subsection] = {}
            section = section[subsection]
        section[name] = value
    return result


def _flattened(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and their values, with paths converted to strings."""
    for key, value in values.items():
        if isinstance(value, os.PathLike):  # The result of a run is both a path and a dataclass.
            value = os.fspath(value)
        elif dataclasses.is_dataclass(value):
            value = values_of(value)
        if isinstance(value, Mapping | ConfigDict) and len(value):
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def apply_words(tree: ConfigDict, overrides: Sequence[str], cls: type) -> ConfigDict:
    """Return a config with overrides applied.

    Args:
      tree: the config.
      overrides: arguments such as "--config.seed=1". The prefix "--config." is optional.
      cls: the config's dataclass.

    Raises:
      ValueError: a key is unknown, or a value cannot be parsed as its key's type.
    """
    keys = list(_leaves(tree))
    values_by_key = {}
    for word in overrides:
        key, equals, value = word.removeprefix("--config.").partition("=")
        if key not in keys:
            parents = [parent for parent in keys if key.startswith(f"{parent}.")]
            if any(_type_of(parent, tree) is type(None) for parent in parents):
                raise ValueError(_empty_section(word))
            raise ValueError(f"--config.{key}{unknown_key(key, keys)}{_new_entry(key, tree, cls)}")
        if not equals:
            raise ValueError(f"--config.{key}: missing value. Write --config.{key}=VALUE")
        if value != "None" and _type_of(key, tree) is type(None):
            raise ValueError(_empty_section(word))
        values_by_key[key] = value
    words = [f"--config.{key}={value}" for key, value in values_by_key.items() if value != "None"]
    argv = ["bert-jax", *words]
    values = flags.FlagValues()
    config_flags.DEFINE_config_dict("config", tree, flag_values=values, sys_argv=argv)
    try:
        values(argv)
    except flags.Error as error:
        raise ValueError(_parse_error(str(error), tree, values_by_key)) from error
    # config_flags cannot parse None.
    nones = {key: None for key, value in values_by_key.items() if value == "None"}
    values.config.update_from_flattened_dict(nones)
    return values.config


def _empty_section(word: str) -> str:
    return (
        f"{word}: the config file leaves this section empty, and overrides cannot fill it in. Use "
        "a config file that has the section, such as an edited copy of this one"
    )


def _new_entry(key: str, tree: ConfigDict, cls: type) -> str:
    """Return advice if a key, such as phases.phase2.corpus, belongs to a new entry in a mapping."""
    section, *rest = key.split(".")
    keys = config_keys(cls)
    if section not in keys or get_origin(keys[section].hint) is not dict or len(rest) < 2:
        return ""
    entry = rest[0]
    if entry in (tree.get(section) or ()):
        return ""
    return (
        f" To add {section}.{entry}, use a config file that has it, such as an edited copy of "
        "this one"
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


def _parse_error(error: str, tree: ConfigDict, values: Mapping[str, str]) -> str:
    """Return a clearer message for an error from config_flags that quotes a Python error."""
    for key, value in values.items():
        if error.startswith(f"flag --config.{key}="):
            kind = _type_of(key, tree)
            return f"--config.{key}={value}: expected {_KINDS.get(kind, kind.__name__)}"
    return error
