"""Print a model's parameters and FLOPs, part by part, and what a training step costs.

bert-jax inspect --config configs/pretrain/bert_base.py
"""

from __future__ import annotations

import argparse

from bert_jax.analysis.flops import TRAINING_FACTOR, layer_flops, pretraining_flops
from bert_jax.analysis.parameters import counts_by_part
from bert_jax.cli.config import add_config_argument, load_config
from bert_jax.cli.run_config import PhaseConfig, PretrainConfig
from bert_jax.models.config import ComputeConfig
from bert_jax.models.parameters import count
from bert_jax.tasks.pretraining import Pretraining


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    add_config_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tables; nothing is computed on a device, no corpus is needed."""
    config = load_config(PretrainConfig, args.config, args.config_overrides)
    # Parameters and FLOPs do not depend on how a model is computed.
    compute = ComputeConfig(dtype="float32", attention="xla")
    task = Pretraining(config.model, compute, sentence_pairs=config.sentence_pairs)
    shapes = task.definition.shapes
    total = count(shapes)
    print(f"{'parameters':62s}{'':>16s}")
    for part, number in counts_by_part(shapes).items():
        print(f"  {part:60s}{number:16,d}{number / total:8.1%}")
    print(f"  {'total':60s}{total:16,d}")
    for name, _, phase in config.ordered_phases():
        print("\n" + "\n".join(_flops_table(config, name, phase)))
    return 0


def _flops_table(config: PretrainConfig, name: str, phase: PhaseConfig) -> list[str]:
    """FLOPs of one sequence by part, then of a step and of the phase."""
    length, predictions = phase.sequence_length, config.max_predictions(phase)
    layer = layer_flops(config.model, length)
    parts = pretraining_flops(
        config.model, length, predictions, next_sentence=config.sentence_pairs != "none"
    )
    rows = {
        **({"embedding projection": parts.projection} if parts.projection else {}),
        "one layer: query, key and value projections": layer.projections,
        "one layer: attention and its output projection": layer.attention,
        "one layer: feed-forward": layer.ffn,
        "one layer": layer.total,
        f"all {config.model.num_layers} layers": parts.layers,
        f"masked-LM head at {predictions} positions": parts.masked_lm,
        "pooler and sentence-pair head": parts.next_sentence,
        "forward": parts.forward,
        f"forward and backward ({TRAINING_FACTOR} x)": parts.training,
    }
    step = parts.training * phase.batch_size
    lines = [f"FLOPs of matrix products, {name}: one sequence of {length} tokens"]
    lines += [f"  {title:60s}{flops:24,d}" for title, flops in rows.items()]
    lines.append(f"  {f'training step of {phase.batch_size} sequences':60s}{step:24,d}")
    lines.append(f"  {f'all {phase.num_steps:,} steps':60s}{step * phase.num_steps:24.4g}")
    return lines
