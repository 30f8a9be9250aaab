"""List the keys of config dataclasses with their types, defaults and meanings."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bert_jax.conversion import config_keys, values_of, without_none
from bert_jax.validation import nearest

_KINDS = {bool: "true or false", int: "whole number", float: "number", str: "text"}
_EACH = {int: "a whole number", float: "a number", str: "a text"}


@dataclass(frozen=True)
class Section:
    """A section of a config.

    Attributes:
      path: the dotted key of the section, or "" for the whole config.
      cls: the section's dataclass.
      values: the default value of each key, or `dataclasses.MISSING` if the key is required.
    """

    path: str
    cls: type
    values: Mapping[str, Any]


def sections(cls: type, path: str = "", default: Any = None) -> Iterator[Section]:
    """Yield a section for a config dataclass, and one for each dataclass nested in it.

    Args:
      cls: the config dataclass.
      path: its dotted key, or "" for the whole config.
      default: an instance that provides the default values; None for the defaults of `cls`.
    """
    keys = config_keys(cls)
    values = {key.name: key.default for key in keys.values()}
    if default is not None:
        values = {name: value for name, value in values_of(default).items() if name in keys}
    yield Section(path, cls, values)
    for name, value in values.items():
        inner, _ = without_none(keys[name].hint)
        is_mapping = typing.get_origin(inner) in (dict, Mapping)
        inner = typing.get_args(inner)[1] if is_mapping else inner
        if dataclasses.is_dataclass(inner):
            assert isinstance(inner, type)
            nested = f"{path}.{name}".lstrip(".") + (".NAME" if is_mapping else "")
            yield from sections(inner, nested, value if isinstance(value, inner) else None)


def choose_sections(cls: type, path: str = "") -> list[Section]:
    """Return one section of a config dataclass, or all of them.

    Args:
      cls: the config dataclass.
      path: the dotted key of the section, such as `reporting`, or of a key in it, such as
        `reporting.every_steps`; "" for all sections. `phases` and `phases.phase1` both stand for
        the section `phases.NAME`.

    Raises:
      ValueError: there is no such section or key. The message suggests similar names.
    """
    by_path = {section.path: section for section in sections(cls)}
    if not path:
        return list(by_path.values())
    parent, _, name = path.rpartition(".")
    section = _named(by_path, path)
    if section is None and (around := _named(by_path, parent)) and name in around.values:
        section = around
    if section is None:
        known = [key for key in by_path if key]
        raise ValueError(f"the config has no section or key {path!r}; {nearest(path, known)}")
    return [section]


def _named(by_path: Mapping[str, Section], path: str) -> Section | None:
    """Return the section at `path`; `phases` and `phases.phase1` stand for `phases.NAME`."""
    parent = path.rpartition(".")[0]
    for candidate in (path, f"{path}.NAME", f"{parent}.NAME"):
        if candidate in by_path:
            return by_path[candidate]
    return None


def lines(section: Section) -> Iterator[str]:
    """Yield lines that describe a section: its path, its keys and the docstring of its class."""
    yield section.path or "config"
    keys = config_keys(section.cls)
    for name, value in section.values.items():
        hint, optional = without_none(keys[name].hint)
        key = f"{section.path}.{name}".lstrip(".")
        if dataclasses.is_dataclass(hint) or typing.get_origin(hint) in (dict, Mapping):
            yield f"  {key}: a section" + (", optional" if optional else "")
            continue
        default_text = "required" if value is dataclasses.MISSING else f"default {value!r}"
        yield f"  {key}: {_kind(hint)}{' or None' if optional else ''}, {default_text}"
    yield ""
    yield textwrap.indent(inspect.getdoc(section.cls) or "", "    ")


def _kind(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin is tuple:
        return f"a list of values, each {_EACH.get(arguments[0]) or _kind(arguments[0])}"
    return _KINDS[hint]
