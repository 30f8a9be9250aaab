"""Convert nested mappings (as in config files) to frozen dataclasses, and back.

The supported field types are bool, int, float, str, Literal, tuples, `X | None`, other dataclasses,
`dict[str, X]` of any of these, and `one_section_of`. Any other field type is a programming error.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, TypeVar, cast

from bert_jax.validation import unknown_key

T = TypeVar("T")

_SCALARS = (bool, int, float, str)
_SECTIONS = "sections"
_type_hints = functools.cache(typing.get_type_hints)


def one_section_of(sections: Callable[[], Mapping[str, type]]) -> Any:
    """Define a dataclass field that holds exactly one of several sections.

    In a config, each section has its own key, and all but one of them are None.

    Args:
      sections: a function that returns a dict from the key of each section to its dataclass.
    """
    return dataclasses.field(metadata={_SECTIONS: sections})


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """A key in a config.

    Attributes:
      name: the name of the key.
      hint: the type of its values.
      default: the default value, or `dataclasses.MISSING` if the key is required.
    """

    name: str
    hint: Any
    default: Any


def config_keys(cls: type) -> dict[str, ConfigKey]:
    """Return a dict from name to config key for a dataclass, in declaration order."""
    hints, keys = _type_hints(cls), {}
    for field in dataclasses.fields(cls):
        if _SECTIONS in field.metadata:
            for name, section in field.metadata[_SECTIONS]().items():
                if name in hints:
                    raise ValueError(
                        f"section={name!r}: {cls.__name__} already has a key with this name. "
                        "Rename the section"
                    )
                keys[name] = ConfigKey(name, section | None, None)
        elif field.init:
            keys[field.name] = ConfigKey(field.name, hints[field.name], _default(field))
    return keys


def values_of(value: Any) -> dict[str, Any]:
    """Return the values of a dataclass instance, keyed by config key."""
    values: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        content = getattr(value, field.name)
        if _SECTIONS in field.metadata:
            sections = field.metadata[_SECTIONS]().items()
            values |= {name: content if type(content) is cls else None for name, cls in sections}
        else:
            values[field.name] = content
    return values


def to_dataclass(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Create a dataclass instance from a nested mapping.

    Ints are converted to floats, and lists to tuples, where a field requires it. Nothing else is
    converted. Omitted keys take the defaults of the dataclass.

    Raises:
      ValueError: a key is unknown or missing, or a value has the wrong type or is rejected by the
        dataclass. The message begins with the dotted path of the key.
    """
    if not isinstance(values, Mapping):
        raise ValueError(
            f"{path}: expected a section with the keys of {cls.__name__}, got {values!r}"
        )
    keys = config_keys(cls)
    for name in values:
        if name not in keys:
            raise ValueError(f"{path}.{name}{unknown_key(str(name), _keys_of(cls, values))}")
    arguments = {}
    for name, key in keys.items():
        if name in values:
            arguments[name] = _convert(key.hint, values[name], f"{path}.{name}")
        elif key.default is dataclasses.MISSING:
            raise ValueError(_missing(f"{path}.{name}"))
    try:
        return cls(**_with_one_section(cls, arguments))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def without_absent_sections(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored config without the empty sections that are no longer registered.

    A stored config contains None for every section that was registered when it was written, except
    for the one that it uses.
    """
    keys = config_keys(cls)
    has_sections = any(_SECTIONS in field.metadata for field in dataclasses.fields(cls))
    return {key: x for key, x in values.items() if x is not None or key in keys or not has_sections}


def _with_one_section(cls: type, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for `cls`, in which a field's name replaces the keys of its sections.

    The field gets the only section that is not None.
    """
    for field in dataclasses.fields(cls):
        if _SECTIONS not in field.metadata:
            continue
        names = list(field.metadata[_SECTIONS]())
        values = {name: arguments.pop(name, None) for name in names}
        present = {name: section for name, section in values.items() if section is not None}
        if len(present) != 1:
            raise ValueError(
                f"the {field.name} requires exactly one of the sections {', '.join(names)}; got "
                f"{', '.join(present) or 'none of them'}"
            )
        (arguments[field.name],) = present.values()
    return arguments


def _keys_of(cls: type, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the dotted keys of a config, including keys inside the mappings in `values`."""
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
    """Convert a dataclass to JSON-compatible dicts, lists and scalars, in declaration order."""
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
            raise ValueError(f"{path}: expected a section with named entries, got {value!r}")
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
    """Return (X, True) for the type `X | None`, and (hint, False) for any other type."""
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
