"""Between nested mappings, as configs are written, and frozen dataclasses, as the code takes them.

Understood field types: bool, int, float, str, Literal, tuples, `X | None`, another dataclass, and
`dict[str, X]` of any of these. A dataclass with a field of another type is a mistake of ours.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from bert_jax.validation import unknown_key

T = TypeVar("T")

_SCALARS = (bool, int, float, str)


def to_dataclass(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Build `cls` from a nested mapping, accepting nothing it does not declare.

    An int is widened to a float and a list becomes a tuple where the field asks for one; nothing
    else is converted. Keys left out take the dataclass's defaults.

    Raises:
      ValueError: an unknown or missing key, a value of the wrong type, or one that the dataclass
        itself refuses; the message begins with the dotted path of the culprit.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{path}: expected a section of keys for {cls.__name__}, got {values!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}  # type: ignore[arg-type]
    for key in values:
        if key not in fields:
            raise ValueError(f"{path}.{key}{unknown_key(str(key), _keys_of(cls, values))}")
    arguments = {}
    for name, field in fields.items():
        if name in values:
            arguments[name] = _convert(hints[name], values[name], f"{path}.{name}")
        elif not _has_default(field):
            raise ValueError(_missing(f"{path}.{name}"))
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _keys_of(cls: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of a config; `values` has the names of the parts of a mapping."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint, _ = without_none(hints[field.name])
        value = values.get(field.name)
        inside = value if isinstance(value, Mapping) else {}
        if dataclasses.is_dataclass(hint):
            section = cast(type, hint)
            yield from (f"{field.name}.{key}" for key in _keys_of(section, inside))
        elif typing.get_origin(hint) in (dict, Mapping):
            part = typing.get_args(hint)[1]
            for name in inside if dataclasses.is_dataclass(part) else ():
                yield from (f"{field.name}.{name}.{key}" for key in _keys_of(part, inside[name]))
        elif field.init:
            yield field.name


def to_plain(value: Any) -> Any:
    """Turn a dataclass into what JSON holds: dicts, lists and scalars, keys in declared order."""
    if dataclasses.is_dataclass(value):
        return {
            field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def _convert(hint: Any, value: Any, path: str) -> Any:
    hint, optional = without_none(hint)
    if value is None:
        if optional:
            return None
        raise ValueError(_missing(path))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        section = cast(type, hint)
        return value if isinstance(value, section) else to_dataclass(section, value, path)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{path}: expected a section of named parts, got {value!r}")
        return {key: _convert(arguments[1], value[key], f"{path}.{key}") for key in value}
    if origin is tuple:
        return _convert_tuple(arguments, value, path)
    if origin is Literal:
        if value in arguments and type(value) in {type(choice) for choice in arguments}:
            return value
        raise ValueError(f"{path}: {value!r} is not one of {', '.join(map(repr, arguments))}")
    assert hint in _SCALARS, f"{path}: fields of type {hint} cannot be configured"
    if hint is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{path}: the number {str(value)[:20]}... is too large") from None
    if type(value) is not hint:
        kind = type(value).__name__
        raise ValueError(f"{path}: expected {hint.__name__}, got {value!r} ({kind})")
    return value


def _convert_tuple(arguments: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{path}: expected a tuple, got {value!r}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        arguments = arguments[:1] * len(value)
    if len(arguments) != len(value):
        raise ValueError(f"{path}: expected {len(arguments)} values, got {len(value)}: {value!r}")
    pairs = zip(arguments, value, strict=True)
    return tuple(_convert(hint, item, f"{path}[{i}]") for i, (hint, item) in enumerate(pairs))


def without_none(hint: Any) -> tuple[Any, bool]:
    """Split `X | None` into (X, True); any other type comes back as (hint, False)."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    others = [choice for choice in typing.get_args(hint) if choice is not types.NoneType]
    assert len(others) == 1, f"{hint} is ambiguous: only X | None can be configured"
    return others[0], True


def _missing(path: str) -> str:
    return f"{path}: missing; set it in the config file or as --{path}=VALUE"


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return (
        field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    )
