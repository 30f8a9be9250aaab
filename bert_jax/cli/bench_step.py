"""Time the train step of a config on random tokens: no corpus is needed.

    bert-jax bench step --config configs/pretrain/bert_base.py --phase phase2

Prints one JSON line: compile time, ms, tokens/s, model FLOP/s (forward and backward of the layers
and of the MLM head at the masked positions, and what a teacher adds) and the MiB a device needs, as
the compiler counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.analysis.chips import peak_flops
from bert_jax.analysis.counts import TRAINING_FACTOR, pretraining_flops
from bert_jax.cli.config import add_config_argument
from bert_jax.pretraining.config import PhaseConfig, PretrainConfig
from bert_jax.pretraining.phases import comparing_flops, random_batch
from bert_jax.pretraining.plan import check_pretraining
from bert_jax.pretraining.teacher import known_teacher, tasks_of
from bert_jax.recipes.load import load_config
from bert_jax.training.optimizer import make_optimizer
from bert_jax.training.planning import read_compiled
from bert_jax.training.sharding import local_rows, make_mesh, to_global
from bert_jax.training.step import Dials, TrainState, init_state, make_train_step

ROUNDS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench step`."""
    add_config_argument(parser)
    parser.add_argument("--phase", help="which phase's shapes (default: the first)")
    parser.add_argument(
        "--steps", type=int, default=20, metavar="N", help="steps a round (default: 20)"
    )
    parser.add_argument(
        "--pieces", type=int, default=1, metavar="N", help="documents packed in a row (default: 1)"
    )


def run(args: argparse.Namespace) -> int:
    """Compile, warm up, and time three rounds; the median counts."""
    config = load_config(args.config, args.config_overrides, kind="pretrain")
    name = args.phase or config.ordered_phases()[0][0]
    if name not in config.phases:
        raise ValueError(f"--phase {name}: the config has {', '.join(sorted(config.phases))}")
    if args.steps < 1 or args.pieces < 1:
        raise ValueError("--steps and --pieces must be at least 1")
    check_pretraining(config, make_mesh(config.mesh), only=name, trains=False)
    print(json.dumps(measure(config, config.phases[name], args.steps, args.pieces)), flush=True)
    return 0


def measure(config: PretrainConfig, phase: PhaseConfig, steps: int, pieces: int) -> dict[str, Any]:
    """Times the real train step of `phase` on this process's devices."""
    mesh = make_mesh(config.mesh)
    compute = config.compute.resolve(jax.devices()[0], config.model)
    known = known_teacher(config, jax.devices()[0])
    task, learned = tasks_of(config, compute, known)
    optimizer = make_optimizer(config.optimizer)
    state = init_state(task.definition, optimizer, mesh, config.seed)
    rows = local_rows(mesh, phase.batch_size)
    local = random_batch(config, phase, pieces, len(rows))
    batch = to_global(local, mesh, rows, phase.batch_size)
    step = make_train_step(
        learned,
        optimizer,
        mesh,
        accumulation_steps=config.accumulation_steps,
        teacher=None if known is None else known.teacher,
    )
    taught = {}
    if known is not None:
        taught = init_state(known.teacher.definition, optax.identity(), mesh, config.seed).params
    rate = np.float32(config.optimizer.peak_learning_rate)
    dials = Dials(np.uint32(config.seed), rate, taught)
    began = time.perf_counter()
    compiled = step.lower(state, batch, dials).compile()
    compile_seconds = time.perf_counter() - began
    seconds = _time(lambda state: compiled(state, batch, dials), state, steps)
    flops = pretraining_flops(
        config.model,
        phase.sequence_length,
        config.max_predictions(phase),
        next_sentence=config.sentence_pairs != "none",
    )
    counted = flops.projection + flops.layers + flops.masked_lm
    model_flops = TRAINING_FACTOR * counted * phase.batch_size
    if known is not None:
        model_flops += known.forward_flops(config, phase) + comparing_flops(config, phase)
    peak = peak_flops(mesh.devices.flat[0].device_kind, compute.dtype)
    return {
        "device": f"{mesh.size} x {mesh.devices.flat[0].device_kind}",
        "dtype": compute.dtype,
        "attention": compute.attention,
        "attention_dropout": config.model.attention_dropout,
        "hidden_dropout": config.model.hidden_dropout,
        "batch": phase.batch_size,
        "length": phase.sequence_length,
        "compile_s": round(compile_seconds, 1),
        "ms": round(seconds * 1e3, 2),
        "tok_s": round(phase.batch_size * phase.sequence_length / seconds),
        "model_tflops": round(model_flops / seconds / 1e12, 3),
        "utilisation": round(model_flops / seconds / (peak * mesh.size), 3) if peak else None,
        "memory_mib": round(read_compiled(compiled).memory / 2**20, 2),
    }


def _time(step: Callable[[TrainState], Any], state: TrainState, steps: int) -> float:
    """Median over rounds of the mean seconds of a step."""
    for _ in range(3):
        state, metrics = step(state)
    jax.block_until_ready(metrics)
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for _ in range(steps):
            state, metrics = step(state)
        jax.block_until_ready((state, metrics))
        seconds.append((time.perf_counter() - began) / steps)
    return statistics.median(seconds)
