"""Refuse a pretraining run that does not fit into this machine's memory, before it is traced."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from bert_jax.analysis.counts import parameter_counts
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.sections import EvaluationConfig, LoaderConfig, PhaseConfig
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.processes import check_workers
from bert_jax.training.preflight import (
    PRETRAINING_ARRAYS,
    Part,
    batch_part,
    check_ahead,
    check_fits,
    check_traceable,
    model_size_keys,
    state_parts,
)


def check_run_memory(
    setup: StepSetup,
    mesh: Mesh,
    corpora: Sequence[PhaseCorpus],
    evaluation: EvaluationConfig,
    loader: LoaderConfig,
) -> None:
    """Refuse a run whose train steps, evaluations or prefetched batches do not fit.

    Raises:
      ValueError: the run does not fit; names the largest part and the keys that determine it.
    """
    check_workers("loader.num_workers", loader.num_workers)
    for corpus in corpora:
        phase = corpus.config
        parts = check_step_memory(setup, mesh, corpus.name, phase)
        if evaluation.every_steps:
            # During evaluation a run keeps its state but no gradients.
            kept = [part for part in parts[:-1] if part.name != "gradients"]
            rows = corpus.evaluation_batch_size
            check_fits([*kept, _evaluation_part(setup, mesh, phase, rows)], mesh)
        ahead = min(loader.prefetch * max(1, loader.num_workers), phase.num_steps)
        rows = -(-phase.batch_size // jax.process_count())
        row = phase.sequence_length * PRETRAINING_ARRAYS * 4
        check_ahead(f"loader.prefetch={loader.prefetch}", ahead, rows * row)


def check_step_memory(setup: StepSetup, mesh: Mesh, name: str, phase: PhaseConfig) -> list[Part]:
    """Refuse a phase whose train step does not fit; return what it needs on one device, in parts.

    Raises:
      ValueError: see `check_run_memory`.
    """
    parts = step_parts(setup, mesh, name, phase)
    check_traceable(parts, mesh)
    check_fits(parts, mesh)
    return parts


def step_parts(setup: StepSetup, mesh: Mesh, name: str, phase: PhaseConfig) -> list[Part]:
    """Return the least memory a phase's train step needs on one device, in parts."""
    parameters = parameter_counts(setup.model_config).total
    clips = setup.optimizer.clip_norm > 0 or setup.accumulation_steps > 1
    state = state_parts(
        mesh, parameters, parameters, all_gradients=clips, keys=model_size_keys(setup.model)
    )
    batch = batch_part(
        mesh,
        setup.model,
        setup.compute,
        name="one batch",
        rows=phase.batch_size,
        rows_at_once=phase.batch_size // setup.accumulation_steps,
        length=phase.sequence_length,
        arrays=PRETRAINING_ARRAYS,
        keys=f"phases.{name}.batch_size={phase.batch_size} or sequence_length="
        f"{phase.sequence_length}, or raise accumulation_steps={setup.accumulation_steps}",
    )
    return [*state, batch]


def _evaluation_part(setup: StepSetup, mesh: Mesh, phase: PhaseConfig, rows: int) -> Part:
    return batch_part(
        mesh,
        setup.model,
        setup.compute,
        name="one evaluation batch",
        rows=rows,
        rows_at_once=rows,
        length=phase.sequence_length,
        arrays=PRETRAINING_ARRAYS,
        keys=f"evaluation.batch_size={rows}",
    )
