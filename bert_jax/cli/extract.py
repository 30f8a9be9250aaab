"""Make a work directory of one checkpoint: to start from, evaluate and export, or to pass on.

    bert-jax extract runs/mine --step best --output models/best
    bert-jax extract runs/mine --step 400000 --output models/400k

It has the parameters alone, a third of what a checkpoint of AdamW holds, with the run's config, log
and manifests. No run goes on in it; a new one starts from it (`init_from`).
"""

from __future__ import annotations

import argparse

from bert_jax.runs.checkpoints import BEST, NEWEST, Step, extract


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `extract`."""
    parser.add_argument(
        "work_dir",
        metavar="WORKDIR",
        help="of `pretrain` or `finetune`; a run may be at work there",
    )
    parser.add_argument(
        "--step",
        required=True,
        metavar="N",
        help=f"of the checkpoint; '{NEWEST}', or '{BEST}' by the held-out metric of the run's "
        "config among the checkpoints that are there",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the work directory to make")


def run(args: argparse.Namespace) -> int:
    """Write the directory, whole or not at all."""
    result = extract(args.work_dir, args.output, _step(args.step))
    print(f"{args.output}: the parameters of step {result.step:,} of {args.work_dir}")
    return 0


def _step(text: str) -> Step:
    if text == BEST:
        return BEST
    if text == NEWEST:
        return NEWEST
    if not text.isdecimal():
        raise ValueError(f"--step {text}: expected a number of steps, '{BEST}' or '{NEWEST}'")
    return int(text)
