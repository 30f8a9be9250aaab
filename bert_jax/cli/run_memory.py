"""Estimate the least memory a run needs from its config, and compare it with the machine's."""

from __future__ import annotations

from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from bert_jax.cli.run_config import PhaseConfig, PretrainConfig
from bert_jax.data.finetuning.features import Features
from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.machine_memory import check_workers
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.model import ModelConfig
from bert_jax.models.sizes import parameter_counts
from bert_jax.training.memory import (
    Part,
    batch_part,
    check_ahead,
    check_fits,
    check_traceable,
    state_parts,
)
from bert_jax.training.tuning import Tuning

# Integers per token of a batch: token, segment, position and document; a fine-tuning batch has a
# mask instead of positions and documents.
_PRETRAINING_ARRAYS, _FINETUNING_ARRAYS = 4, 3
# Sizes of BERT-large, by the names of EncoderConfig's fields.
_OF_BERT_LARGE = {
    "hidden_dim": 1024,
    "embedding_dim": 1024,
    "ffn_dim": 4096,
    "num_layers": 24,
    "vocab_size": 30_522,
    "max_positions": 512,
}


def check_pretraining(
    config: PretrainConfig, mesh: Mesh, *, only: str | None = None, trains: bool = True
) -> None:
    """Refuse a run that does not fit into this machine's memory, before any of it is traced.

    Args:
      only: the phase to check; None for all.
      trains: whether batches are also loaded and evaluated; False for `bench step`.

    Raises:
      ValueError: the run does not fit; names the largest part and the keys that determine it.
    """
    compute = config.compute.resolve(jax.devices()[0], config.model)
    if trains:
        check_workers("loader.num_workers", config.loader.num_workers)
    for name, _, phase in config.ordered_phases():
        if only not in (None, name):
            continue
        parts = pretraining_parts(config, mesh, compute, name, phase)
        check_traceable(parts, mesh)
        check_fits(parts, mesh)
        if not trains:
            continue
        if config.evaluation.every_steps:
            # During evaluation a run keeps its state but no gradients.
            kept = [part for part in parts[:-1] if part.name != "gradients"]
            check_fits([*kept, _evaluation_part(config, mesh, compute, phase)], mesh)
        ahead = min(config.loader.prefetch * max(1, config.loader.num_workers), phase.num_steps)
        rows = -(-phase.batch_size // jax.process_count())
        row = phase.sequence_length * _PRETRAINING_ARRAYS * 4
        check_ahead(f"loader.prefetch={config.loader.prefetch}", ahead, rows * row)


def pretraining_parts(
    config: PretrainConfig, mesh: Mesh, compute: ComputeConfig, name: str, phase: PhaseConfig
) -> list[Part]:
    """Return the least memory a phase's train step needs on one device, in parts."""
    parameters = parameter_counts(config.model_config()).total
    clips = config.optimizer.clip_norm > 0 or config.accumulation_steps > 1
    state = state_parts(
        mesh, parameters, parameters, all_gradients=clips, keys=_model_keys(config.model)
    )
    batch = batch_part(
        mesh,
        config.model,
        compute,
        name="one batch",
        rows=phase.batch_size,
        rows_at_once=phase.batch_size // config.accumulation_steps,
        length=phase.sequence_length,
        arrays=_PRETRAINING_ARRAYS,
        keys=f"phases.{name}.batch_size={phase.batch_size} or sequence_length="
        f"{phase.sequence_length}, or raise accumulation_steps={config.accumulation_steps}",
    )
    return [*state, batch]


def _evaluation_part(
    config: PretrainConfig, mesh: Mesh, compute: ComputeConfig, phase: PhaseConfig
) -> Part:
    rows = config.evaluation_batch_size(phase)
    return batch_part(
        mesh,
        config.model,
        compute,
        name="one evaluation batch",
        rows=rows,
        rows_at_once=rows,
        length=phase.sequence_length,
        arrays=_PRETRAINING_ARRAYS,
        keys=f"evaluation.batch_size={rows}",
    )


def check_finetuning(
    config: FinetuneConfig,
    mesh: Mesh,
    model: ModelConfig,
    compute: ComputeConfig,
    train: Features,
    row_lengths: Sequence[int],
) -> None:
    """Refuse a fine-tuning run that does not fit into this machine's memory.

    Args:
      compute: the computation's settings, with "auto" resolved.
      row_lengths: padded lengths of the rows of `train`, ascending; every epoch uses the longest.

    Raises:
      ValueError: see `check_pretraining`.
    """
    counts, tuning = parameter_counts(model), Tuning(config.tuning, model.encoder)
    rows, length = config.batch_size * train.sequences_per_example, row_lengths[-1]
    trained = counts.above
    trained += counts.layers * tuning.num_learning_layers // model.encoder.num_layers
    trained += counts.embeddings if tuning.learns("encoder.embeddings.token") else 0
    parts = state_parts(
        mesh,
        counts.total,
        trained,
        all_gradients=config.optimizer.clip_norm > 0 or config.accumulation_steps > 1,
        keys=f"the model's size ({config.init_from}: {_model_keys(model.encoder)})",
    )
    batch = batch_part(
        mesh,
        model.encoder,
        compute,
        name="one batch",
        rows=rows,
        rows_at_once=rows // config.accumulation_steps,
        length=length,
        arrays=_FINETUNING_ARRAYS,
        keys=f"batch_size={config.batch_size} or max_length={config.max_length}, or raise "
        f"accumulation_steps={config.accumulation_steps}",
    )
    check_traceable([*parts, batch], mesh)
    check_fits([*parts, batch], mesh)


def _model_keys(encoder: EncoderConfig) -> str:
    """Return the keys that size the embeddings or the layers, whichever have more parameters.

    Keys that are no larger than in BERT-large are left out, unless all of them are.
    """
    counts = parameter_counts(ModelConfig(encoder, "encoder", pooler=False))
    names = ["hidden_dim", "ffn_dim", "num_layers"]
    if counts.embeddings > counts.layers:
        dim = "hidden_dim" if encoder.embedding_dim is None else "embedding_dim"
        names = ["vocab_size", "max_positions", dim]
    large = [name for name in names if getattr(encoder, name) > _OF_BERT_LARGE[name]]
    return ", ".join(f"model.{name}={getattr(encoder, name)}" for name in large or names)
