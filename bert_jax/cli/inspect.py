"""Print a model's parameter and FLOP counts by part, and the FLOPs per training step.

    bert-jax inspect --config configs/pretrain/bert_base.py
    bert-jax inspect runs/mine

For a work directory, print the parameter counts, the head with its labels, and how the model reads
texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bert_jax.analysis.tables import parameter_table
from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_config_argument
from bert_jax.models.config import ComputeConfig
from bert_jax.models.model import define_model
from bert_jax.recipes.tables import config_tables
from bert_jax.runs.summary import model_table
from bert_jax.runs.work_dir import read_model

# Parameter and FLOP counts do not depend on how a model is computed.
_COMPUTE = ComputeConfig(dtype="float32", attention="xla")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument(
        "work_dir",
        nargs="?",
        metavar="WORKDIR",
        help="work directory of a run, or one made by `import`; instead of --config",
    )
    add_config_argument(parser, required=False)


def run(args: argparse.Namespace) -> int:
    """Print the tables, without using a device or reading a corpus."""
    if (args.work_dir is None) == (args.config is None):
        raise ValueError("expected either a work directory or --config FILE.py")
    if args.config is not None:
        print("\n".join(config_tables(args.config, args.config_overrides)))
        return 0
    if args.config_overrides:
        raise ValueError(
            f"{args.config_overrides[0]}: a work directory has no config to override. Omit the "
            "option"
        )
    work_dir = Path(args.work_dir)
    shapes = define_model(read_model(work_dir)[0], _COMPUTE).shapes
    print("\n".join([*model_table(work_dir), "", *parameter_table(shapes)]))
    return 0
