r"""Fine-tune a pretrained model on a task, or resume exactly where a run stopped.

    bert-jax finetune --config configs/finetune/sst2.py --init runs/mine --data data/SST-2
    bert-jax finetune --config configs/finetune/table.py --init runs/mine --data reviews.csv

The same command starts a run, resumes it after it was killed, and does nothing once it is finished.
The validation set is scored the way the task's official scorer does it. `evaluate`, `predict` and
`export` use the checkpoint with the best score.
"""

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import (
    add_config_argument,
    add_data_argument,
    add_distributed_argument,
    add_from_step_argument,
    add_init_argument,
)
from bert_jax.cli.output import console_report
from bert_jax.finetuning.training import finetune
from bert_jax.recipes.command_line import finetune_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training import distributed


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `finetune`."""
    add_config_argument(parser)
    add_init_argument(parser)
    add_data_argument(parser)
    add_distributed_argument(parser)
    add_from_step_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Fine-tune, print the reports, and return the exit code."""
    config = finetune_config(args.config, args.config_overrides, args.init, args.data)
    distributed.join(force=args.distributed)
    enable_compilation_cache()
    stop = distributed.StopRequest()
    result = finetune(config, from_step=args.from_step, on_report=console_report, stop=stop)
    return 0 if result.finished else stop.exit_code
