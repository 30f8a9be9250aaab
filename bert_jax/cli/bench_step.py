"""Time a config's train step on random tokens, without a corpus.

    bert-jax bench step --config configs/pretrain/bert_base.py --phase phase2

The output is one line of JSON with the compile time, the time per step in ms, tokens/s, model
FLOP/s and the device memory in MiB that the compiler reports. The FLOPs cover the forward and
backward passes through the layers and, at the masked positions, through the MLM head. If the config
has a teacher, its FLOPs are included.
"""

import argparse
import dataclasses
import json

import jax

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_config_argument
from bert_jax.pretraining.step_timing import time_step
from bert_jax.recipes.load import load_config
from bert_jax.training.sharding import make_mesh


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `bench step`."""
    add_config_argument(parser)
    parser.add_argument(
        "--phase", help="phase that determines the shape of the batch (default: the first)"
    )
    parser.add_number("--steps", "number of steps per round", default=20, minimum=1)
    documents = "number of documents packed into a row"
    parser.add_number("--documents-per-row", documents, default=1, minimum=1)
    parser.accept_former_name("--pieces", "--documents-per-row")


def run(args: argparse.Namespace) -> int:
    """Compile and warm up the step, then print the median time of three rounds."""
    config = load_config(args.config, args.config_overrides, kind="pretrain")
    name = args.phase or config.ordered_phases()[0][0]
    if name not in config.phases:
        names = ", ".join(sorted(config.phases))
        raise ValueError(f"--phase={name}: the config has no such phase. Choose one of {names}")
    mesh, device, phase = make_mesh(config.mesh), jax.devices()[0], config.phases[name]
    setup = config.step_setup(device).for_phase(phase)
    setup.check_memory(mesh, name, phase)
    timing = time_step(
        setup.with_teacher(device, config.longest_sequence),
        mesh,
        phase,
        config.longest_sequence,
        steps=args.steps,
        documents_per_row=args.documents_per_row,
        joined=config.join_documents,
        seed=config.seed,
    )
    print(json.dumps(dataclasses.asdict(timing)), flush=True)
    return 0
