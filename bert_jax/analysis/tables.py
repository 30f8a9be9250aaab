"""Format tables of a model's parameters and training FLOPs as lines of text."""

from __future__ import annotations

from collections.abc import Mapping

import jax

from bert_jax.analysis.counts import counts_by_part
from bert_jax.analysis.flops import (
    TRAINING_FACTOR,
    layer_flops,
    pretraining_flops,
    replaced_token_flops,
)
from bert_jax.models.config import EncoderConfig
from bert_jax.models.options import NormKind
from bert_jax.models.parameters import count


def parameter_table(
    shapes: Mapping[str, jax.ShapeDtypeStruct], norm_kind: NormKind = "layer"
) -> list[str]:
    """Format the number of parameters in each part of a model, and the total.

    For the arguments, see `parameters_by_part`.
    """
    total = count(shapes)
    lines = [f"{'parameters':62s}{'':>16s}"]
    lines += [
        f"  {part:60s}{number:16,d}{number / total:8.1%}"
        for part, number in counts_by_part(shapes, norm_kind).items()
    ]
    return [*lines, f"  {'total':60s}{total:16,d}"]


def flops_table(
    encoder: EncoderConfig,
    name: str,
    *,
    length: int,
    batch_size: int,
    num_steps: int,
    num_sequences: int,
    predictions: int,
    next_sentence: bool,
    generator: EncoderConfig | None = None,
) -> list[str]:
    """Format each part's FLOPs for one sequence, and the FLOPs of a train step and of a phase.

    Args:
      encoder: the encoder's architecture.
      name: the name of the phase.
      length: the number of tokens in a sequence.
      batch_size: the number of sequences per step.
      num_steps: the number of steps in the phase.
      num_sequences: the number of sequences in the phase, which is less than num_steps x batch_size
        if the batch size has a warm-up.
      predictions: the number of masked positions per sequence.
      next_sentence: whether there is a sentence-pair head.
      generator: the generator of a model that detects replaced tokens; None for other models.
    """
    layer = layer_flops(encoder, length)
    parts = pretraining_flops(encoder, length, predictions, next_sentence=next_sentence)
    forward = parts.forward
    heads = {
        f"masked-LM head at {predictions} positions": parts.masked_lm,
        "pooler and sentence-pair head": parts.next_sentence,
    }
    if generator is not None:
        small = pretraining_flops(generator, length, predictions, next_sentence=False).forward
        forward = replaced_token_flops(encoder, generator, length, predictions)
        head = forward - small - parts.projection - parts.layers
        heads = {"replaced-token head": head, "generator": small}
    rows = {
        **({"embedding projection": parts.projection} if parts.projection else {}),
        "one layer: query, key and value projections": layer.projections,
        "one layer: attention and its output projection": layer.attention,
        "one layer: feed-forward": layer.ffn,
        "one layer": layer.total,
        f"all {encoder.num_layers} layers": parts.layers,
        **heads,
        "forward": forward,
        f"forward and backward ({TRAINING_FACTOR} x)": TRAINING_FACTOR * forward,
        f"training step of {batch_size} sequences": TRAINING_FACTOR * forward * batch_size,
    }
    total = TRAINING_FACTOR * forward * num_sequences
    return [
        f"matmul FLOPs in {name}, for one sequence of {length} tokens",
        *(f"  {title:60s}{flops:24,d}" for title, flops in rows.items()),
        f"  {f'all {num_steps:,} steps':60s}{total:24.4g}",
    ]
