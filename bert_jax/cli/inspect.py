"""Print a model's parameter and FLOP counts by part, or describe a corpus.

    bert-jax inspect --config configs/pretrain/bert_base.py
    bert-jax inspect runs/mine --shapes
    bert-jax inspect base roberta-base albert-base-v2 distilbert
    bert-jax inspect corpora/mine --page corpus.html

For a config, the tables show the parameters and the FLOPs of a training step in each phase. For a
published encoder, they show its parameters, and for a work directory, its settings and parameters.
Recipes and encoders can have the same name, such as tiny: the encoder has the published sizes, and
the recipe's model has the sizes in its config. With --shapes, the shape of every parameter is
listed. Multiple models are compared side by side.

For a corpus, the output shows the lengths of its rows and documents, its most frequent tokens, and
ten rows as training sees them, with masks and pair labels. --config selects the run's settings.
"""

import argparse
import sys

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_config_argument
from bert_jax.recipes.tables import inspection
from bert_jax.terminal import shows_color, use_utf8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="work directory, published encoder such as base (instead of --config), or corpus",
    )
    add_config_argument(parser, required=False)
    parser.add_flag("--shapes", "list the shape of every parameter")
    parser.add_output_file("--page", "HTML page to write, only for a corpus")


def run(args: argparse.Namespace) -> int:
    """Print the tables without using a device. No rows are read unless a corpus is described."""
    use_utf8(sys.stdout)
    how = {"shapes": args.shapes, "page": args.page, "color": shows_color(sys.stdout)}
    print("\n".join(inspection(args.models, args.config, args.config_overrides, **how)))
    return 0
