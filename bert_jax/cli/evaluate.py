r"""Score a fine-tuned model on the validation set or another file, the same way its run did.

    bert-jax evaluate runs/sst2
    bert-jax evaluate runs/wnut17 --data emerging.test.annotated --output scores.json
    bert-jax evaluate runs/mnli --unlabelled --predictions submission
    bert-jax evaluate models/imported --config configs/finetune/sst2.py \
      --config.glue.directory=data/SST-2

The last command scores an imported model that was fine-tuned with another library; its labels are
matched by name. With --config and --config.sentences.files.*, a run's model can also be scored on a
table in a different format. The run's best checkpoint is used by default. The printed table has one
row per class, label or entity type.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import (
    add_config_argument,
    add_distributed_argument,
    add_work_dir_argument,
)
from bert_jax.finetuning.evaluation import evaluate
from bert_jax.finetuning.score_report import check_outputs, lines, write_scores
from bert_jax.recipes.command_line import evaluation_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training import distributed


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `evaluate`."""
    add_work_dir_argument(
        parser, "work directory made by `finetune` or, with --config, by any command"
    )
    add_config_argument(parser, required=False)
    parser.add_option(
        "--data",
        "FILE",
        "file to use instead of the validation file, in the same format; for GLUE, it can be a "
        "directory",
    )
    parser.add_flag(
        "--unlabelled",
        "predict without scoring, for the task's test files or for --data without labels",
    )
    parser.add_number("--step", "step of the checkpoint (default: the best one)")
    parser.add_output_file("--output", "JSON file for the scores")
    predictions = "directory for the predictions, in files named after the data sets"
    parser.add_option("--predictions", "DIR", predictions)
    add_distributed_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Score the model, print the scores, and write the requested files."""
    distributed.join(force=args.distributed)
    enable_compilation_cache()
    output = None if args.output is None else Path(args.output)
    check_outputs(output, args.predictions, labeled=not args.unlabelled)
    result = evaluate(
        args.work_dir,
        data=args.data,
        step=args.step,
        labeled=not args.unlabelled,
        predictions=args.predictions or None,
        config=evaluation_config(args.config, args.config_overrides, args.work_dir),
    )
    if jax.process_index() == 0:
        print("\n".join(lines(result)))
        if output is not None:
            write_scores(output, result, args.data)
    return 0
