"""Between nested mappings, as configs are written, and frozen dataclasses, as the code takes them.

Understood field types: bool, int, float, str, Literal, tuples, `X | None`, another dataclass,
`dict[str, X]` of any of these, and `one_section_of`. Any other field type is a programming
error.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from bert_jax.validation import unknown_key

T = TypeVar("T")

_SCALARS = (bool, int, float, str)
_SECTIONS = "sections"


def one_section_of(sections: Callable[[], Mapping[str, type]]) -> Any:
    """Return a field of a dataclass that holds exactly one of several sections.

    In a config each of the sections has its own key, and all but one are None.

    Args:
      sections: returns the dataclass of every section by its key.
    """
    return dataclasses.field(metadata={_SECTIONS: sections})


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """A key of a config.

    hint: the type of its values. default: `dataclasses.MISSING` for a required key.
    """

    name: str
    hint: Any
    default: Any


def config_keys(cls: type) -> dict[str, ConfigKey]:
    """Return the keys that a config for a dataclass may have, by name, in declared order."""
    hints, keys = typing.get_type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if _SECTIONS in field.metadata:
            for name, section in field.metadata[_SECTIONS]().items():
                if name in hints:
                    raise ValueError(
                        f"section={name!r}: {cls.__name__} has a key with this name. Rename the "
                        "section"
                    )
                keys[name] = ConfigKey(name, section | None, None)
        elif field.init:
            keys[field.name] = ConfigKey(field.name, hints[field.name], _default(field))
    return keys


def values_of(value: Any) -> dict[str, Any]:
    """Return the values of a dataclass by the keys of its config."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        if _SECTIONS in field.metadata:
            sections = field.metadata[_SECTIONS]().items()
            values |= {name: held if type(held) is kind else None for name, kind in sections}
        else:
            values[field.name] = held
    return values


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
    keys = config_keys(cls)
    for key in values:
        if key not in keys:
            raise ValueError(f"{path}.{key}{unknown_key(str(key), _keys_of(cls, values))}")
    arguments = {}
    for name, known in keys.items():
        if name in values:
            arguments[name] = _convert(known.hint, values[name], f"{path}.{name}")
        elif known.default is dataclasses.MISSING:
            raise ValueError(_missing(f"{path}.{name}"))
    try:
        return cls(**_with_one_section(cls, arguments))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def without_absent_sections(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config without the empty sections that `one_section_of` no longer offers.

    A config that was stored while more sections were registered has None for each of them.
    """
    keys = config_keys(cls)
    offers = any(_SECTIONS in field.metadata for field in dataclasses.fields(cls))
    return {key: x for key, x in values.items() if x is not None or key in keys or not offers}


def _with_one_section(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `cls` with the given section under its field's name."""
    for field in dataclasses.fields(cls):
        if _SECTIONS not in field.metadata:
            continue
        names = list(field.metadata[_SECTIONS]())
        held = {name: arguments.pop(name, None) for name in names}
        given = {name: section for name, section in held.items() if section is not None}
        if len(given) != 1:
            raise ValueError(
                f"the {field.name} is given by one of the sections {', '.join(names)}; there are "
                f"{', '.join(given) or 'none'}"
            )
        (arguments[field.name],) = given.values()
    return arguments


def _keys_of(cls: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of a config; `values` has the names of the parts of a mapping."""
    for key in config_keys(cls).values():
        hint, _ = without_none(key.hint)
        value = values.get(key.name)
        inside = value if isinstance(value, Mapping) else {}
        if dataclasses.is_dataclass(hint):
            section = cast(type, hint)
            yield from (f"{key.name}.{inner}" for inner in _keys_of(section, inside))
        elif typing.get_origin(hint) in (dict, Mapping):
            part = typing.get_args(hint)[1]
            for name in inside if dataclasses.is_dataclass(part) else ():
                yield from (f"{key.name}.{name}.{inner}" for inner in _keys_of(part, inside[name]))
        else:
            yield key.name


def to_plain(value: Any) -> Any:
    """Turn a dataclass into what JSON holds: dicts, lists and scalars, keys in declared order."""
    if dataclasses.is_dataclass(value):
        return {key: to_plain(item) for key, item in values_of(value).items()}
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
    return (
        f"{path}: missing. Set it in the config file or override it (command line: --{path}=VALUE)."
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default
