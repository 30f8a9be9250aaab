"""Compile a run's train steps for hardware that is not here, and say what they would cost there.

    bert-jax plan --config configs/pretrain/bert_base.py --topology v5e:4x4
    bert-jax plan --config configs/pretrain/tiny.py --topology cpu:8

Prints for every phase: bytes a device needs, collectives by kind, FLOPs, and the least time that a
step can take there. A run that does not fit is told which flags make it fit. The program is the
one that `pretrain` would run; no parameter is made and no corpus is opened.
"""

from __future__ import annotations

import argparse

from bert_jax.analysis.topology import EXAMPLES, topology_devices
from bert_jax.cli.config import add_config_argument


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `plan`."""
    add_config_argument(parser)
    parser.add_argument(
        "--topology", required=True, metavar="KIND:SHAPE", help=f"the devices: {EXAMPLES}"
    )
    parser.add_argument(
        "--pieces",
        type=int,
        default=0,
        metavar="N",
        help="documents packed in a row (default: what `prepare` packs, one for 32 tokens)",
    )
    parser.add_argument(
        "--hbm",
        type=float,
        metavar="GIB",
        help="memory of a device (default: the chip's; a CPU has no limit)",
    )
    parser.add_argument(
        "--tries",
        type=int,
        default=6,
        metavar="N",
        help="changes to compile at most where a run does not fit (default: 6)",
    )


def run(args: argparse.Namespace) -> int:
    """Plan every phase; exit code 1 if the run does not fit."""
    if args.pieces < 0 or args.tries < 0 or (args.hbm is not None and args.hbm <= 0):
        raise ValueError("--pieces and --tries must not be negative, and --hbm is positive")
    devices = topology_devices(args.topology)
    # Only now: what this imports computes with JAX, whose devices the line above decides.
    from bert_jax.cli.plan_run import plan_run

    return plan_run(args, devices)
