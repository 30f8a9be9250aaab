"""Compile a run's train steps for hardware that is not here, and say what they would cost there.

    bert-jax plan --config configs/pretrain/bert_base.py --topology v5e:4x4
    bert-jax plan --config configs/pretrain/tiny.py --topology cpu:8

Prints for every phase: bytes a device needs, collectives by kind, FLOPs, and the least time that a
step can take there. A run that does not fit is told which flags make it fit. The program is the
one that `pretrain` would run; no parameter is made and no corpus is opened.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bert_jax.analysis.chips import GIB
from bert_jax.analysis.topology import EXAMPLES, topology_devices
from bert_jax.cli.arguments import add_config_argument
from bert_jax.cli.output import console_report

ON_A_SCREEN, ELSEWHERE = 1.0, 60.0  # seconds between two lines about a compilation


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
    # Imported late, since the line above sets variables that JAX reads when it is imported.
    from bert_jax.pretraining.plan import plan
    from bert_jax.recipes.load import load_config

    result = plan(
        load_config(args.config, args.config_overrides, kind="pretrain"),
        devices,
        pieces=args.pieces,
        memory_bytes=None if args.hbm is None else int(args.hbm * GIB),
        tries=args.tries,
        on_report=console_report,
        while_compiling=_show_compiling,
    )
    return 0 if result.fits else 1


@contextmanager
def _show_compiling(what: str) -> Iterator[None]:
    """Print to stderr which step is being compiled and for how long."""
    began = time.perf_counter()
    screen = sys.stderr.isatty()
    done = threading.Event()

    def show(doing: str, end: str) -> None:
        seconds = time.perf_counter() - began
        print(f"{doing} {what}: {seconds:.0f} s", end=end, file=sys.stderr, flush=True)

    def tick() -> None:
        while not done.wait(ON_A_SCREEN if screen else ELSEWHERE):
            show("compiling", "\r" if screen else "\n")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        show("compiled ", "\n")
