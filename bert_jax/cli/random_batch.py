"""A batch with the shapes of a phase, for verbs that need no corpus."""

from __future__ import annotations

import numpy as np

from bert_jax.cli.run_config import PhaseConfig, PretrainConfig


def random_batch(
    config: PretrainConfig, phase: PhaseConfig, pieces: int, rows: int
) -> dict[str, np.ndarray]:
    """Full rows of random tokens, each of `pieces` documents of equal length.

    Raises:
      ValueError: there are more documents than tokens, or several although the config joins them.
    """
    if pieces > phase.sequence_length:
        raise ValueError(
            f"--pieces {pieces}: a row of {phase.sequence_length} tokens cannot hold more than "
            f"{phase.sequence_length} documents. Lower --pieces or leave it out"
        )
    if config.join_documents and pieces > 1:
        raise ValueError(
            f"--pieces {pieces} with join_documents=True: what a row holds is one document then; "
            "leave --pieces out"
        )
    rng = np.random.default_rng(config.seed)
    length, predictions = phase.sequence_length, config.max_predictions(phase)
    piece = np.minimum(np.arange(length) * pieces // length, pieces - 1)
    starts = np.searchsorted(piece, np.arange(pieces))
    position = np.arange(length) - starts[piece]
    token_ids = rng.integers(0, config.model.vocab_size, (rows, length))
    places = np.sort(rng.random((rows, length)).argsort(axis=1)[:, :predictions], axis=1)
    batch = {
        "token_ids": token_ids,
        "segment_ids": np.tile(position > length // pieces // 2, (rows, 1)),
        "position_ids": np.tile(position, (rows, 1)),
        "document_ids": np.tile(piece + 1, (rows, 1)),
        "masked_positions": places,
        "masked_labels": np.take_along_axis(token_ids, places, axis=1),
        "cls_positions": np.tile(starts, (rows, 1)),
        "pair_labels": rng.integers(0, 2, (rows, pieces)),
    }
    result = {name: value.astype(np.int32) for name, value in batch.items()}
    result["masked_weights"] = np.ones((rows, predictions), np.float32)
    result["pair_weights"] = np.ones((rows, pieces), np.float32)
    return result
