"""Print every key of a config: its type, its default and its meaning.

    bert-jax keys pretrain
    bert-jax keys pretrain distillation
    bert-jax keys finetune optimizer

A key is set in a config file or as --config.section.key=value.
"""

from __future__ import annotations

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.config_keys import lines, sections
from bert_jax.recipes.load import CONFIGS
from bert_jax.validation import nearest


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `keys`."""
    parser.add_argument("config", choices=list(CONFIGS), help="verb that takes the config")
    parser.add_argument(
        "section", nargs="?", default="", help="section of the config (default: all sections)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the keys, section by section."""
    by_path = {section.path: section for section in sections(CONFIGS[args.config])}
    if args.section and args.section not in by_path:
        raise ValueError(f"no section {args.section!r}; {nearest(args.section, list(by_path)[1:])}")
    chosen = [by_path[args.section]] if args.section else list(by_path.values())
    print("\n\n".join("\n".join(lines(section)) for section in chosen))
    return 0
