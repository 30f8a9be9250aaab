"""Show a batch of a pretraining run: what is masked, replaced and kept, and the pair labels.

bert-jax show-batch runs/mine --step 100
bert-jax show-batch --config tiny --config.phases.phase1.corpus=corpora/mine
"""

from __future__ import annotations

import argparse
import sys

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_config_argument
from bert_jax.recipes.show_batch import show_batch
from bert_jax.terminal import shows_color, use_utf8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `show-batch`."""
    parser.add_argument(
        "work_dir",
        nargs="?",
        metavar="WORKDIR",
        help="work directory of a pretraining run, instead of --config",
    )
    add_config_argument(parser, required=False)
    parser.add_number("--step", "step of the run, from 0", default=0)
    parser.add_number("--rows", "number of rows to show", default=4)


def run(args: argparse.Namespace) -> int:
    """Print the rows."""
    if (args.work_dir is None) == (args.config is None):
        raise ValueError("expected one of a work directory and --config RECIPE.")
    source = args.work_dir or args.config
    view = show_batch(source, args.config_overrides, step=args.step, num_rows=args.rows)
    use_utf8(sys.stdout)
    print("\n".join(view.lines(color=shows_color(sys.stdout))))
    return 0
