"""Declare `--config` and add options to its overrides."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_config_argument(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Give a verb `--config RECIPE`; `--config.a.b=value` overrides any key of it."""
    parser.add_argument(
        "--config",
        required=required,
        metavar="RECIPE",
        help="a recipe, such as tiny or sst2, or a config file, FILE.py; any key of it is "
        "overridden as --config.section.key=value (None where a key may be empty)",
    )


def add_override(overrides: Sequence[str], key: str, value: str, option: str) -> list[str]:
    """Return the overrides with one more, which was given as a command-line option.

    Raises:
      ValueError: the overrides already contain the key.
    """
    word = f"--config.{key}"
    for other in overrides:
        if other.partition("=")[0] == word:
            raise ValueError(f"{option}={value} and {other} set the same key. Give one of them.")
    return [*overrides, f"{word}={value}"]
