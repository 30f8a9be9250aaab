"""Check every verb's command line before its module runs."""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence

from bert_jax.local_paths import check_local


def free_text(text: str) -> str:
    """Return an argument unchanged: an argparse type that marks the argument as not being a path.

    Every argument of another type is refused if it begins with `scheme://`, so new options are
    checked without being listed anywhere.
    """
    return text


def check_paths(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse arguments that begin with `scheme://`: only local paths can be read and written.

    Raises:
      ValueError: an argument begins with `scheme://`; the message begins with its option.
    """
    for action in parser._actions:
        if action.type is free_text:
            continue
        for value in _values(getattr(args, action.dest, None)):
            check_local(value, _name(action))


def check_repeated(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Refuse a repeated option of which argparse would use only the last value.

    Raises:
      ValueError: an option is repeated; options that collect values (`action="extend"`) may be.
    """
    single = {
        option: action.option_strings[-1]
        for action in parser._actions
        for option in action.option_strings
        if isinstance(action, argparse._StoreAction)
    }
    before_dashes = words[: words.index("--")] if "--" in words else words
    given = Counter(
        single[name] for word in before_dashes if (name := word.partition("=")[0]) in single
    )
    if repeated := [name for name, count in given.items() if count > 1]:
        raise ValueError(f"{repeated[0]} is given {given[repeated[0]]} times. Give it once.")


def _values(value: object) -> Iterator[str | os.PathLike[str]]:
    if isinstance(value, str | os.PathLike):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _values(item)


def _name(action: argparse.Action) -> str:
    if action.option_strings:
        return action.option_strings[-1]
    return action.metavar if isinstance(action.metavar, str) else action.dest
