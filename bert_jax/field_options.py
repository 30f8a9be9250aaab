"""Derive command-line options from the fields of a dataclass, so that they are described once.

A field that was made with `option` has a help text. `add_field_options` declares an option for each
such field, and `option_values` returns the values of the fields from the parsed arguments.
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from bert_jax.argument_parser import ArgumentParser, free_text, option_name, option_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_HELP, _METAVAR, _ANY_TEXT = "help", "metavar", "any_text"


def option(default: Any, help: str, *, metavar: str = "N", any_text: bool = False) -> Any:
    """Return a dataclass field that can be set with a command-line option.

    Args:
      default: the field's default.
      help: the option's help text, to which the default is appended unless it is None, False or
        empty.
      metavar: the name of the value in the help text.
      any_text: whether the value may begin with `scheme://`. If False, such a value is rejected,
        because it may be a path; see `free_text`.
    """
    metadata = {_HELP: help, _METAVAR: metavar, _ANY_TEXT: any_text}
    return dataclasses.field(default=default, metadata=metadata)


def add_field_options(
    parser: ArgumentParser, cls: type[DataclassInstance], names: Iterable[str] | None = None
) -> None:
    """Declare an option for each field of a dataclass that was made with `option`.

    The type of a field determines the option: a bool is a flag, a `Literal` is a choice of words,
    and a tuple takes one or more values. If these values are choices, the dataclass must check
    them. For a union with `None`, the value of an omitted option is None.

    Args:
      parser: the parser.
      cls: the dataclass.
      names: the fields to declare options for, in this order; None for all fields.
    """
    hints = typing.get_type_hints(cls)
    fields = _option_fields(cls)
    for name in fields if names is None else names:
        field = fields[name]
        _add_option(parser, field, _without_none(hints[name]))


def option_values(cls: type[DataclassInstance], args: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that `add_field_options` declared, keyed by field.

    Args:
      cls: the dataclass.
      args: the parsed arguments. Fields whose options were not declared are omitted.
    """
    given = vars(args)
    values = {name: given[name] for name in _option_fields(cls) if name in given}
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def options_of_fields(cls: type[DataclassInstance]) -> dict[str, str]:
    """Return the name of the option for each field that was made with `option`."""
    return option_names(*_option_fields(cls))


def _option_fields(cls: type[DataclassInstance]) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(cls) if _HELP in field.metadata}


def _without_none(hint: Any) -> Any:
    """Return the type T of a hint `T | None`, or the hint itself."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    (kind,) = (part for part in typing.get_args(hint) if part is not type(None))
    return kind


def _add_option(parser: ArgumentParser, field: dataclasses.Field[Any], kind: Any) -> None:
    name = option_name(field.name)
    default: Any = field.default
    help, metavar = field.metadata[_HELP], field.metadata[_METAVAR]
    text = free_text if field.metadata[_ANY_TEXT] else None
    if kind is bool:
        assert default is False, f"{field.name}: the default of a flag must be False"
        parser.add_flag(name, help)
    elif typing.get_origin(kind) is Literal:
        parser.add_choice(name, typing.get_args(kind), help, default=default)
    elif typing.get_origin(kind) is tuple:
        element = typing.get_args(kind)[0]
        is_text = element is str or typing.get_origin(element) is Literal
        assert is_text, f"{field.name}: expected a tuple of texts"
        assert default == (), f"{field.name}: the default of a list must be ()"
        parser.add_list(name, metavar, help, kind=text, default=[])
    else:
        converter = text if kind is str else kind
        parser.add_option(name, metavar, help, kind=converter, default=default)
