"""Print every config key with its type, default and meaning.

    bert-jax keys pretrain
    bert-jax keys pretrain distillation
    bert-jax keys finetune optimizer

Set a key in a config file, or on the command line as --config.section.key=value.
"""

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.config_keys import choose_sections, lines
from bert_jax.recipes.load import CONFIGS


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `keys`."""
    parser.add_argument("config", choices=list(CONFIGS), help="verb that the config is for")
    parser.add_argument(
        "section", nargs="?", default="", help="section, or key in it (default: all sections)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the config keys, section by section."""
    chosen = choose_sections(CONFIGS[args.config], args.section)
    print("\n\n".join("\n".join(lines(section)) for section in chosen))
    return 0
