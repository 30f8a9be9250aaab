"""Time a phase's train step on random tokens."""

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
from bert_jax.analysis.flops import TRAINING_FACTOR, pretraining_flops
from bert_jax.pretraining.attention_text import attention_reason
from bert_jax.pretraining.phase_config import PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.training.planning import read_compiled
from bert_jax.training.sharding import local_rows, to_global
from bert_jax.training.state import TrainState, init_state
from bert_jax.training.step import StepInputs, make_train_step

ROUNDS = 3


@dataclass(frozen=True)
class StepTiming:
    """The measured time and the settings of a train step, under the names used in the output.

    Attributes:
      device: the number and kind of devices.
      dtype: the compute dtype.
      attention: the attention implementation.
      attention_reason: the reason why no faster implementation is used; "" if there is no reason.
      products: the number format in which the encoder's dense layers multiply; see `ComputeConfig`.
      attention_dropout: the dropout rate for attention probabilities.
      hidden_dropout: the dropout rate for hidden states.
      batch: the number of sequences per step.
      length: the number of tokens per sequence.
      compile_s: the compile time in seconds.
      ms: the time per step in milliseconds.
      tok_s: the throughput in tokens per second.
      model_tflops: the model TFLOP/s achieved by all devices together, counting the layers, the
        masked-LM head at the masked positions, and the teacher if there is one.
      utilisation: `model_tflops` as a fraction of the devices' peak in `dtype`; None if the peak is
        unknown.
      memory_mib: the memory that each device needs according to the compiler, in MiB.
    """

    device: str
    dtype: str
    attention: str
    attention_reason: str
    products: str
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
    longest_sequence: int,
    *,
    steps: int = 20,
    documents_per_row: int = 1,
    joined: bool = False,
    seed: int = 0,
) -> StepTiming:
    """Compile a phase's train step, and measure its time as the median of three rounds.

    Args:
      setup: the train-step settings, with the teacher.
      mesh: the device mesh.
      phase: the phase; only its batch size and sequence length are used.
      longest_sequence: the longest sequence length of any phase.
      steps: the number of steps per round.
      documents_per_row: the number of documents packed into a row.
      joined: whether the documents in a row attend to each other.
      seed: the random seed for parameters and tokens.
    """
    state, batch, inputs = _arguments(
        setup, mesh, phase, documents_per_row, joined=joined, seed=seed
    )
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
        attention_reason=attention_reason(setup, mesh.devices.flat[0], longest_sequence),
        products=setup.compute.products,
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
    setup: StepSetup,
    mesh: Mesh,
    phase: PhaseConfig,
    documents_per_row: int,
    *,
    joined: bool,
    seed: int,
) -> tuple[TrainState, dict[str, jax.Array], StepInputs]:
    state = init_state(setup.task.definition, setup.transformation, mesh, seed)
    rows = local_rows(mesh, phase.batch_size)
    local = random_batch(
        phase.sequence_length,
        documents_per_row,
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
    if setup.generator is not None:
        return setup.training_flops(phase, documents_per_row=1)
    flops = pretraining_flops(
        setup.model,
        phase.sequence_length,
        setup.max_predictions(phase),
        next_sentence=setup.sentence_pairs != "none",
    )
    trained = flops.projection + flops.layers + flops.masked_lm
    return TRAINING_FACTOR * trained * phase.batch_size + setup.distillation_flops(phase)


def _median_seconds(step: Callable[[TrainState], Any], state: TrainState, steps: int) -> float:
    """Measure the mean time per step in each round, and return the median in seconds."""
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


def random_batch(
    length: int,
    documents_per_row: int,
    rows: int,
    *,
    vocab_size: int,
    predictions: int,
    joined: bool = False,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Return a batch of random tokens in full rows, with documents of equal length.

    Args:
      length: the number of tokens per row.
      documents_per_row: the number of documents per row.
      rows: the number of rows.
      vocab_size: the vocabulary size.
      predictions: the number of masked positions per row.
      joined: whether the documents in a row attend to each other.
      seed: the random seed for the tokens.

    Raises:
      ValueError: a row has more documents than tokens, or more than one document even
        though documents are joined.
    """
    if documents_per_row > length:
        raise ValueError(
            f"--documents-per-row={documents_per_row}: a row of {length} tokens cannot hold more "
            f"than {length} documents. Reduce it, or omit the option."
        )
    if joined and documents_per_row > 1:
        raise ValueError(
            f"--documents-per-row={documents_per_row} with join_documents=True: the documents in a "
            "row are joined into one. Omit the option."
        )
    rng = np.random.default_rng(seed)
    document = np.minimum(np.arange(length) * documents_per_row // length, documents_per_row - 1)
    starts = np.searchsorted(document, np.arange(documents_per_row))
    position = np.arange(length) - starts[document]
    token_ids = rng.integers(0, vocab_size, (rows, length))
    masked = np.sort(rng.random((rows, length)).argsort(axis=1)[:, :predictions], axis=1)
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.tile(position > length // documents_per_row // 2, (rows, 1)),
        "position_ids": np.tile(position, (rows, 1)),
        "document_ids": np.tile(document + 1, (rows, 1)),
        "masked_positions": masked,
        "masked_labels": np.take_along_axis(token_ids, masked, axis=1),
        "cls_positions": np.tile(starts, (rows, 1)),
        "pair_labels": rng.integers(0, 2, (rows, documents_per_row)),
    }
    result = {name: value.astype(np.int32) for name, value in batch.items()}
    result["masked_weights"] = np.ones((rows, predictions), np.float32)
    result["pair_weights"] = np.ones((rows, documents_per_row), np.float32)
    return result
