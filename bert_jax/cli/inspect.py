"""Print a model's parameters and FLOPs, part by part, and what a training step costs.

    bert-jax inspect --config configs/pretrain/bert_base.py
    bert-jax inspect runs/mine

Of a work directory, the parameters, the head with its labels, and how the model reads texts.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import jax

from bert_jax.analysis.counts import TRAINING_FACTOR, counts_by_part, layer_flops, pretraining_flops
from bert_jax.cli.arguments import add_config_argument
from bert_jax.models.config import ComputeConfig, EncoderConfig
from bert_jax.models.model import define_model
from bert_jax.models.parameters import count
from bert_jax.objectives import SentencePairs
from bert_jax.pretraining.sections import PhaseConfig
from bert_jax.recipes.load import load_config
from bert_jax.runs.work_dir import (
    default_checkpoint_step,
    read_inference_defaults,
    read_model,
    read_sentence_embedding,
)
from bert_jax.tasks.pretraining import Pretraining


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `inspect`."""
    parser.add_argument(
        "work_dir", nargs="?", metavar="WORKDIR", help="of a run, or of `import`; or give --config"
    )
    add_config_argument(parser, required=False)


def run(args: argparse.Namespace) -> int:
    """Print the tables; nothing is computed on a device, no corpus is needed."""
    if (args.work_dir is None) == (args.config is None):
        raise ValueError("expected one of a work directory and --config FILE.py")
    # Parameters and FLOPs do not depend on how a model is computed.
    compute = ComputeConfig(dtype="float32", attention="xla")
    if args.work_dir is not None:
        if args.config_overrides:
            raise ValueError(
                f"{args.config_overrides[0]}: a work directory has no config to change"
            )
        print("\n".join(_work_dir_lines(Path(args.work_dir), compute)))
        return 0
    config = load_config(args.config, args.config_overrides, kind="pretrain")
    task = Pretraining(config.model, compute, sentence_pairs=config.sentence_pairs)
    print("\n".join(_parameter_table(task.definition.shapes)))
    for name, _, phase in config.ordered_phases():
        lines = _flops_table(
            config.model, name, phase, config.max_predictions(phase), config.sentence_pairs
        )
        print("\n" + "\n".join(lines))
    return 0


def _work_dir_lines(work_dir: Path, compute: ComputeConfig) -> list[str]:
    model, _ = read_model(work_dir)
    defaults, step = read_inference_defaults(work_dir), default_checkpoint_step(work_dir)
    rows = {"step": f"{step:,}", "head": model.head}
    rows |= {"labels": ", ".join(model.labels)} if model.labels else {}
    rows |= vars(model.encoder) | (vars(defaults) if defaults is not None else {})
    lines = _table("model", rows)
    settings = read_sentence_embedding(work_dir)
    if settings is not None:
        lines += ["", *_table("sentence embedding", settings.described())]
    return [*lines, "", *_parameter_table(define_model(model, compute).shapes)]


def _table(title: str, rows: Mapping[str, object]) -> list[str]:
    return [f"{title:38s}", *(f"  {name:36s}{value}" for name, value in rows.items())]


def _parameter_table(shapes: Mapping[str, jax.ShapeDtypeStruct]) -> list[str]:
    total = count(shapes)
    lines = [f"{'parameters':62s}{'':>16s}"]
    lines += [f"  {p:60s}{n:16,d}{n / total:8.1%}" for p, n in counts_by_part(shapes).items()]
    return [*lines, f"  {'total':60s}{total:16,d}"]


def _flops_table(
    encoder: EncoderConfig,
    name: str,
    phase: PhaseConfig,
    predictions: int,
    sentence_pairs: SentencePairs,
) -> list[str]:
    """Return the FLOPs of one sequence by part, then of a step and of the phase."""
    length = phase.sequence_length
    layer = layer_flops(encoder, length)
    parts = pretraining_flops(encoder, length, predictions, next_sentence=sentence_pairs != "none")
    rows = {
        **({"embedding projection": parts.projection} if parts.projection else {}),
        "one layer: query, key and value projections": layer.projections,
        "one layer: attention and its output projection": layer.attention,
        "one layer: feed-forward": layer.ffn,
        "one layer": layer.total,
        f"all {encoder.num_layers} layers": parts.layers,
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
