"""Time the train step of a phase on random tokens."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bert_jax.analysis.chips import peak_flops
from bert_jax.analysis.counts import TRAINING_FACTOR, pretraining_flops
from bert_jax.pretraining.phases import random_batch
from bert_jax.pretraining.sections import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.planning import read_compiled
from bert_jax.training.sharding import local_rows, to_global
from bert_jax.training.step import StepInputs, TrainState, init_state, make_train_step

ROUNDS = 3


@dataclass(frozen=True)
class StepTiming:
    """The time of a train step and the figures that explain it, under their printed names.

    compile_s: seconds to compile the step. ms: milliseconds of a step. tok_s: tokens per second.
    model_tflops: model FLOP/s of all devices, in units of 10^12, of the layers and of the
      masked-LM head at the masked positions, and of a teacher if there is one.
    utilisation: `model_tflops` as a fraction of the devices' peak; None if the peak is unknown.
    memory_mib: MiB that a device needs, as the compiler counts.
    """

    device: str
    dtype: str
    attention: str
    attention_dropout: float
    hidden_dropout: float
    batch: int
    length: int
    compile_s: float
    ms: float
    tok_s: int
    model_tflops: float
    utilisation: float | None
    memory_mib: float


def time_step(
    setup: StepSetup,
    mesh: Mesh,
    phase: PhaseConfig,
    *,
    steps: int = 20,
    pieces: int = 1,
    joined: bool = False,
    seed: int = 0,
) -> StepTiming:
    """Compile the train step of a phase, warm up, and time three rounds; the median counts.

    Args:
      steps: steps in a round.
      pieces: documents packed in a row.
      joined: whether the config joins the documents of a row.
    """
    state, batch, inputs = _arguments(setup, mesh, phase, pieces, joined=joined, seed=seed)
    step = make_train_step(
        setup.trained_task,
        setup.transformation,
        mesh,
        accumulation_steps=setup.accumulation_steps,
        teacher=None if setup.teacher is None else setup.teacher.teacher,
    )
    began = time.perf_counter()
    compiled = step.lower(state, batch, inputs).compile()
    compile_seconds = time.perf_counter() - began
    seconds = _median_seconds(lambda state: compiled(state, batch, inputs), state, steps)
    flops = _model_flops(setup, phase)
    kind = mesh.devices.flat[0].device_kind
    peak = peak_flops(kind, setup.compute.dtype)
    return StepTiming(
        device=f"{mesh.size} x {kind}",
        dtype=setup.compute.dtype,
        attention=setup.compute.attention,
        attention_dropout=setup.model.attention_dropout,
        hidden_dropout=setup.model.hidden_dropout,
        batch=phase.batch_size,
        length=phase.sequence_length,
        compile_s=round(compile_seconds, 1),
        ms=round(seconds * 1e3, 2),
        tok_s=round(phase.batch_size * phase.sequence_length / seconds),
        model_tflops=round(flops / seconds / 1e12, 3),
        utilisation=round(flops / seconds / (peak * mesh.size), 3) if peak else None,
        memory_mib=round(read_compiled(compiled).memory / 2**20, 2),
    )


def _arguments(
    setup: StepSetup, mesh: Mesh, phase: PhaseConfig, pieces: int, *, joined: bool, seed: int
) -> tuple[TrainState, dict[str, jax.Array], StepInputs]:
    state = init_state(setup.task.definition, setup.transformation, mesh, seed)
    rows = local_rows(mesh, phase.batch_size)
    local = random_batch(
        phase.sequence_length,
        pieces,
        len(rows),
        vocab_size=setup.model.vocab_size,
        predictions=setup.max_predictions(phase),
        joined=joined,
        seed=seed,
    )
    batch = to_global(local, mesh, rows, phase.batch_size)
    params = {}
    if setup.teacher is not None:
        definition = setup.teacher.teacher.definition
        params = init_state(definition, optax.identity(), mesh, seed).params
    rate = np.float32(setup.optimizer.peak_learning_rate)
    return state, batch, StepInputs(np.uint32(seed), rate, params)


def _model_flops(setup: StepSetup, phase: PhaseConfig) -> int:
    flops = pretraining_flops(
        setup.model,
        phase.sequence_length,
        setup.max_predictions(phase),
        next_sentence=setup.sentence_pairs != "none",
    )
    counted = flops.projection + flops.layers + flops.masked_lm
    return TRAINING_FACTOR * counted * phase.batch_size + setup.distillation_flops(phase)


def _median_seconds(step: Callable[[TrainState], Any], state: TrainState, steps: int) -> float:
    """Return the median over rounds of the mean seconds of a step."""
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
