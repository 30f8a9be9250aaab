"""The option by which the processes of a Cloud TPU pod find each other."""

from __future__ import annotations

import argparse


def add_distributed_argument(parser: argparse.ArgumentParser) -> None:
    """Declare `--distributed`, which launch/cloud_tpu.sh gives to the verb it starts."""
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="join the other hosts of a Cloud TPU pod (Slurm, Open MPI and launch/local.sh are "
        "recognised without it)",
    )
