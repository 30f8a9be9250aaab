"""Configs as the command line knows them: every key there is, with its type."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal, cast

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference

from bert_jax.conversion import without_none


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
