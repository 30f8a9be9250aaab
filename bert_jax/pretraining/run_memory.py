"""Check that a pretraining run's steps, evaluations and prefetched batches fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax
from jax.sharding import Mesh

from bert_jax.language_scores.batch_limits import BatchLimits
from bert_jax.language_scores.evaluation_set import BatchShape, EvaluationSet
from bert_jax.models.config import EncoderConfig
from bert_jax.pretraining.evaluation import SCORING_COMPUTE
from bert_jax.pretraining.evaluation_config import EvaluationConfig
from bert_jax.pretraining.phase_config import LoaderConfig, PhaseConfig
from bert_jax.pretraining.phases import PhaseCorpus
from bert_jax.pretraining.step_setup import StepSetup
from bert_jax.processes import check_workers
from bert_jax.training.memory import (
    PRETRAINING_ARRAYS,
    Part,
    batch_part,
    check_ahead,
    check_fits,
)


def check_run_memory(
    setup: StepSetup,
    mesh: Mesh,
    corpora: Sequence[PhaseCorpus],
    evaluation: EvaluationConfig,
    loader: LoaderConfig,
) -> None:
    """Check that a run's train steps, held-out evaluations and prefetched batches fit in memory.

    Raises:
      ValueError: the run does not fit; the message names the largest part and its config keys.
    """
    check_workers("loader.num_workers", loader.num_workers)
    for corpus in corpora:
        phase = corpus.config
        parts = setup.check_memory(mesh, corpus.name, phase)
        if evaluation.every_steps:
            rows = corpus.evaluation_batch_size
            check_fits([*_kept(parts), _evaluation_part(setup, mesh, phase, rows)], mesh)
        ahead = min(loader.prefetch * max(1, loader.num_workers), phase.num_steps)
        rows = -(-phase.batch_size // jax.process_count())
        row_bytes = phase.sequence_length * PRETRAINING_ARRAYS * 4
        check_ahead(f"loader.prefetch={loader.prefetch}", ahead, rows * row_bytes)


def check_scoring_memory(
    setup: StepSetup, mesh: Mesh, corpora: Sequence[PhaseCorpus], data: EvaluationSet
) -> None:
    """Check that the batches of the texts and minimal pairs fit in memory during a run.

    Raises:
      ValueError: they do not fit; the message names the largest part and its config keys.
    """
    for corpus in corpora:
        state = _kept(setup.memory_parts(mesh, corpus.name, corpus.config))
        for part in _scoring_parts(setup.generator or setup.model, mesh, data):
            check_fits([*state, part], mesh)


def _kept(parts: Sequence[Part]) -> list[Part]:
    """Return the parts of a train step's memory that an evaluation also needs: the state."""
    return [part for part in parts[:-1] if part.name != "gradients"]


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


def _scoring_parts(encoder: EncoderConfig, mesh: Mesh, data: EvaluationSet) -> Iterator[Part]:
    limits = BatchLimits.of(encoder, mesh)

    def part(name: str, shape: BatchShape, keys: str) -> Part:
        return batch_part(
            mesh,
            encoder,
            SCORING_COMPUTE,
            name=name,
            rows=shape.rows,
            rows_at_once=shape.rows,
            length=shape.length,
            arrays=1,
            keys=keys,
        )

    for shape in data.text_batches(limits):
        keys = f"evaluation.text_length (the longest rows have {shape.length:,} tokens)"
        yield part("one batch of evaluation.texts", shape, keys)
    if (longest := data.sentence_batch(limits)) is not None:
        keys = f"the number of tokens in the longest sentence ({longest.length:,})"
        yield part("one batch of evaluation.minimal_pairs", longest, keys)
