"""Pretrain a model on prepared corpora, or resume exactly where a run stopped.

    bert-jax pretrain --config configs/pretrain/tiny.py --config.work_dir=runs/mine
    bert-jax pretrain --init models/base --corpus corpora/domain

The second command continues the pretraining of a model on other text. It takes the model's sizes,
tokenizer and heads, and uses the recipe domain unless --config names another one.

The same command starts a run, resumes it after it was killed, and does nothing once it is finished.
After SIGTERM, the run saves a checkpoint at the next step and exits with code 143. SIGHUP (code
129) and Ctrl-C (code 130) do the same. A second Ctrl-C ends the run at once, or after a save that
has already begun. --from-step N resumes from an earlier checkpoint, such as the last one before the
loss diverged.
"""

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import (
    add_config_argument,
    add_distributed_argument,
    add_from_step_argument,
    add_init_argument,
    add_work_dir_argument,
)
from bert_jax.cli.output import console_report
from bert_jax.downstream.follow import follow
from bert_jax.downstream.pretraining import pretrain
from bert_jax.recipes.command_line import pretrain_config
from bert_jax.runs.runtime import enable_compilation_cache
from bert_jax.training import distributed


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pretrain`."""
    add_config_argument(parser, required=False)
    required = (
        "; also sets the --config.model keys that they require, unless overridden, and "
        "--config.sentence_pairs, unless the config sets it"
    )
    add_init_argument(parser, required)
    parser.add_option(
        "--corpus",
        "DIR",
        "corpus made by `prepare`, for a config with one phase "
        "(--config.phases.NAME.corpus); also sets the phase's sequence_length",
    )
    add_distributed_argument(parser)
    add_from_step_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train until the last phase ends or a signal stops the run."""
    config = pretrain_config(args.config, args.config_overrides, args.init, args.corpus)
    distributed.join(force=args.distributed)
    stop = distributed.StopRequest()
    result = pretrain(config, from_step=args.from_step, on_report=console_report, stop=stop)
    return 0 if result.finished else stop.exit_code


def add_follow_run_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `follow`."""
    add_work_dir_argument(parser, "work directory of a pretraining run, which may be in progress")
    configs = (
        "fine-tuning recipes, such as sst2, or config files; --config.section.key=value overrides "
        "a key in all of them"
    )
    parser.add_list("--config", "RECIPE", configs, required=True)
    every = "score only checkpoints whose step is a multiple of N, and the last one"
    parser.add_number("--every", every, 1, minimum=1)
    parser.add_flag("--once", "end when all existing checkpoints have been scored")


def follow_run(args: argparse.Namespace) -> int:
    """Fine-tune the checkpoints of a pretraining run as they appear, and log their scores.

        bert-jax follow runs/mine --config sst2 my_task.py --config.num_epochs=1

    The scores go to downstream.jsonl in WORKDIR, to curves.png and to TensorBoard. The command ends
    when the run is finished. If it was stopped, the same command resumes it and skips the
    checkpoints in the log. It should not use the devices of the run.
    """
    enable_compilation_cache()
    stop = distributed.StopRequest()
    options = {"overrides": args.config_overrides, "every": args.every, "once": args.once}
    result = follow(args.work_dir, args.config, **options, on_report=console_report, stop=stop)
    return 0 if result.finished else stop.exit_code
