"""Compare the layers of two models, or of all checkpoints of a run."""

from __future__ import annotations

from pathlib import Path

from bert_jax.interpretability.checkpoint_similarity import (
    CheckpointSimilarity,
    compare_checkpoints,
)
from bert_jax.interpretability.head_probe import OnProgress
from bert_jax.interpretability.similarity import Similarity, compare_layers
from bert_jax.labeled_data.treebank import find_treebank, read_treebank


def compare(
    first: str | Path,
    other: str | Path | None,
    treebank: str | Path,
    *,
    step: int | None = None,
    other_step: int | None = None,
    every_checkpoint: bool = False,
    max_sentences: int = 500,
    on_progress: OnProgress | None = None,
) -> Similarity | CheckpointSimilarity:
    """Compare the layers of two models, or all checkpoints of a run with its last one.

    Args:
      first: the work directory of a run or of `bert-jax import`.
      other: the work directory of the other model; if None, the first model is compared with
        itself.
      treebank: a CoNLL-U file, or a directory with the files of a treebank, whose test set is used.
      step: the step of the first model's checkpoint; if None, the best one of a fine-tuning run, or
        the newest one of any other model.
      other_step: the step of the other model's checkpoint; None has the same meaning as for `step`.
      every_checkpoint: whether to compare every checkpoint of a run with its last one.
      max_sentences: the maximum number of sentences to read, from the beginning of the treebank.
      on_progress: called with progress messages.

    Raises:
      ValueError: the arguments contradict each other, a file is missing or malformed, or the
        comparison fails.
    """
    if every_checkpoint and (other, step, other_step) != (None, None, None):
        raise ValueError(
            "every_checkpoint=True: this compares all checkpoints of one run. Omit the other model "
            "and the steps."
        )
    sentences = read_treebank(find_treebank(treebank, "test"))
    if every_checkpoint:
        return compare_checkpoints(
            first, sentences, max_sentences=max_sentences, on_progress=on_progress
        )
    return compare_layers(
        first,
        first if other is None else other,
        sentences,
        first_step=step,
        second_step=other_step,
        max_sentences=max_sentences,
        on_progress=on_progress,
    )
