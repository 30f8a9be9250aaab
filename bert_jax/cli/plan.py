"""Compile a run's train steps for other hardware, and print the memory and time they need.

    bert-jax plan --config configs/pretrain/bert_base.py --topology v5e:4x4
    bert-jax plan --config configs/pretrain/tiny.py --topology cpu:8

For each phase, the command prints the device memory, the collectives of each kind, the FLOPs, a
lower bound on the time per step and, for TPUs and GPUs, an estimate of that time. If the run
does not fit, the command looks for flags that would make it fit. The compiled program is the one
that `pretrain` would run, but no parameters are initialized and no corpus is opened.
"""

import argparse
import sys

from bert_jax.analysis.chips import GIB
from bert_jax.analysis.topology import EXAMPLES, topology_devices
from bert_jax.argument_parser import ArgumentParser, above_zero
from bert_jax.cli.arguments import add_config_argument
from bert_jax.cli.output import console_report
from bert_jax.terminal import show_elapsed


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `plan`."""
    add_config_argument(parser)
    parser.add_option(
        "--topology", "KIND:SHAPE", f"kind and layout of the devices: {EXAMPLES}", required=True
    )
    parser.add_number(
        "--documents-per-row",
        "number of documents packed into a row (default: one per 32 tokens, as in `prepare`)",
        minimum=0,
    )
    parser.accept_former_name("--pieces", "--documents-per-row")
    hbm = "memory per device in GiB (default: the chip's memory; no limit on CPUs)"
    parser.add_option("--hbm", "GIB", hbm, kind=above_zero)
    tries = "maximum number of changes to try if the run does not fit"
    parser.add_number("--tries", tries, default=6, minimum=0)
    price = "price of a chip per hour in USD, to print the cost of the run"
    parser.add_option("--price", "USD", price, kind=above_zero)
    parser.add_flag("--explain", "print the ten most expensive instructions and their source lines")


def run(args: argparse.Namespace) -> int:
    """Plan every phase, and return exit code 1 if the run does not fit."""
    devices = topology_devices(args.topology)
    # Import JAX only now, because `topology_devices` sets variables that it reads on import.
    from bert_jax.pretraining.plan import plan
    from bert_jax.recipes.load import load_config

    result = plan(
        load_config(args.config, args.config_overrides, kind="pretrain"),
        devices,
        documents_per_row=args.documents_per_row or 0,
        memory_bytes=None if args.hbm is None else int(args.hbm * GIB),
        tries=args.tries,
        price=args.price,
        on_report=console_report,
        while_compiling=lambda step: show_elapsed(
            f"compiling {step}", f"compiled  {step}", sys.stderr
        ),
    )
    if args.explain:
        print(result.explain())
    return 0 if result.fits else 1
