"""Print every key of a config: its type, its default and what it means.

    bert-jax keys pretrain
    bert-jax keys pretrain distillation
    bert-jax keys finetune optimizer

A key is set in a config file or as --config.section.key=value.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.conversion import without_none
from bert_jax.recipes.load import CONFIGS
from bert_jax.validation import nearest

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class Section:
    """A section of a config, "" for the whole; values: its defaults, {} where it has none."""

    path: str
    cls: type
    values: Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `keys`."""
    parser.add_argument("config", choices=list(CONFIGS), help="of which verb")
    parser.add_argument(
        "section", nargs="?", default="", help="of that section alone (default: of all)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the keys, section by section."""
    found = {section.path: section for section in sections(CONFIGS[args.config])}
    if args.section and args.section not in found:
        raise ValueError(f"no section {args.section!r}; {nearest(args.section, list(found)[1:])}")
    chosen = [found[args.section]] if args.section else list(found.values())
    print("\n\n".join("\n".join(lines(section)) for section in chosen))
    return 0


def sections(cls: type, path: str = "", default: Any = None) -> Iterator[Section]:
    """A config dataclass and all dataclasses in it, with the defaults that hold there."""
    hints = typing.get_type_hints(cls)
    values = {
        field.name: _default(field) if default is None else getattr(default, field.name)
        for field in dataclasses.fields(cls)
        if field.init
    }
    yield Section(path, cls, values)
    for name, value in values.items():
        inner, _ = without_none(hints[name])
        many = typing.get_origin(inner) in (dict, Mapping)
        inner = typing.get_args(inner)[1] if many else inner
        if dataclasses.is_dataclass(inner):
            assert isinstance(inner, type)
            nested = f"{path}.{name}".lstrip(".") + (".NAME" if many else "")
            yield from sections(inner, nested, value if isinstance(value, inner) else None)


def lines(section: Section) -> Iterator[str]:
    """A section's title, its keys, and its description."""
    yield section.path or "config"
    hints = typing.get_type_hints(section.cls)
    for name, value in section.values.items():
        hint, optional = without_none(hints[name])
        key = f"{section.path}.{name}".lstrip(".")
        if dataclasses.is_dataclass(hint) or typing.get_origin(hint) in (dict, Mapping):
            yield f"  {key}: a section" + (", may be left out" if optional else "")
            continue
        given = "required" if value is dataclasses.MISSING else f"default {value!r}"
        yield f"  {key}: {_kind(hint)}{' or None' if optional else ''}, {given}"
    yield ""
    yield textwrap.indent(inspect.getdoc(section.cls) or "", "    ")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return f"values, each a {_kind(arguments[0])}"
    return _KINDS[hint]
