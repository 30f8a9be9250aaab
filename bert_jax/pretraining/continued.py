"""Find the config values that continued pretraining takes from its initial model and its corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from bert_jax.corpus.manifest import read_manifest
from bert_jax.models.config import TRAINING_KEYS, EncoderConfig
from bert_jax.objectives import SentencePairs
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, PAIRS, read_configured_model, read_model
from bert_jax.training.checkpoint_files import steps_in


def model_values(source: Path) -> dict[str, object]:
    """Return the `model.*` values that a run needs to load a work directory's parameters.

    Raises:
      ValueError: see `read_model`.
    """
    return _without_training_keys(read_model(source)[0].encoder)


def configured_model_values(work_dir: Path) -> dict[str, object]:
    """Return a run's `model.*` values except TRAINING_KEYS, ignoring the angles of single phases.

    Raises:
      ValueError: see `read_configured_model`.
    """
    return _without_training_keys(read_configured_model(work_dir).encoder)


def complete_model_values(work_dir: Path) -> dict[str, object]:
    """Return all `model.*` values of a run, including dropout rates and the initializer's range.

    Raises:
      ValueError: see `read_configured_model`.
    """
    return dataclasses.asdict(read_configured_model(work_dir).encoder)


def _without_training_keys(encoder: EncoderConfig) -> dict[str, object]:
    values = dataclasses.asdict(encoder)
    return {key: value for key, value in values.items() if key not in TRAINING_KEYS}


def sentence_pairs_of(source: Path) -> SentencePairs:
    """Return the kind of sentence pairs that the model in a work directory was pretrained on.

    The result is "none" for a model without a sentence-pair head, such as RoBERTa or a classifier.

    Raises:
      ValueError: see `read_model`.
    """
    model, origin = read_model(source)
    if model.head not in ("pretraining", "next_sentence"):
        return "none"
    recorded = origin.get(PAIRS)
    kinds = (kind for kind in get_args(SentencePairs) if kind == recorded)
    return next(kinds, "next_sentence")


def has_begun(work_dir: Path) -> bool:
    """Return whether a run has saved a checkpoint, after which it no longer reads `init_from`."""
    return bool(steps_in(work_dir / CHECKPOINTS_NAME))


def corpus_values(phases: Sequence[str], corpus: str) -> dict[str, object]:
    """Return the config values, by dotted key, that make a run's only phase use a corpus.

    Args:
      phases: the names of the run's phases; there must be exactly one.
      corpus: a directory made by `prepare`.

    Raises:
      ValueError: the run has multiple phases, or the corpus is missing, unfinished or damaged.
    """
    if len(phases) != 1:
        names = ", ".join(f"--config.phases.{name}.corpus" for name in phases)
        raise ValueError(
            f"--corpus={corpus}: the config has {len(phases)} phases, each with its own corpus. "
            f"Set {names} instead."
        )
    (name,) = phases
    return {
        f"phases.{name}.corpus": corpus,
        f"phases.{name}.sequence_length": read_manifest(corpus).max_length,
    }


def check_positions(length: int, positions: int, corpus: str) -> None:
    """Reject a corpus whose sequences have more tokens than the model has positions.

    Args:
      length: the number of tokens in the corpus's sequences.
      positions: the model's number of positions.
      corpus: the corpus, for the error message.

    Raises:
      ValueError: the model has fewer positions than the sequences have tokens.
    """
    if length > positions:
        raise ValueError(
            f"--corpus={corpus}: its sequences have {length:,} tokens, but the model has only "
            f"{positions:,} positions. Prepare the corpus with --max-length {positions}, or add "
            f"positions with --config.model.max_positions={length}."
        )
