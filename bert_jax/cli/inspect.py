"""Print a model's parameter and FLOP counts by part.

    bert-jax inspect --config configs/pretrain/bert_base.py
    bert-jax inspect runs/mine --shapes
    bert-jax inspect base roberta-base albert-base-v2 distilbert

For a config, the tables show the parameters and the FLOPs of a training step in each phase. For a
published encoder, they show its parameters, and for a work directory, its settings and parameters.
Recipes and encoders can have the same name, such as tiny: the encoder has the published sizes, and
the recipe's model has the sizes in its config. With --shapes, the shape of every parameter is
listed. Multiple models are compared side by side.
"""

from __future__ import annotations

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_config_argument
from bert_jax.recipes.tables import inspection


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="work directory, or name of a published encoder, such as base (instead of --config)",
    )
    add_config_argument(parser, required=False)
    parser.add_flag("--shapes", "list the shape of every parameter")


def run(args: argparse.Namespace) -> int:
    """Print the tables, without using a device or reading a corpus."""
    lines = inspection(args.models, args.config, args.config_overrides, shapes=args.shapes)
    print("\n".join(lines))
    return 0
