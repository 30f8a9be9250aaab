"""Pretrain a model from prepared corpora, or go on exactly where a run stopped.

    bert-jax pretrain --config configs/pretrain/tiny.py --config.work_dir=runs/mine
    bert-jax pretrain --config tiny --init models/base

The same command starts a run, continues it after a kill, and does nothing once it is finished.
SIGTERM saves a checkpoint at the next step and exits with code 143; so do SIGHUP (129) and Ctrl-C
(130). A second Ctrl-C exits immediately, or after a save that has already begun. --from-step N
resumes from an earlier checkpoint, such as the last one before the loss diverged.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from bert_jax.cli.arguments import (
    add_config_argument,
    add_distributed_argument,
    add_from_step_argument,
    add_override,
)
from bert_jax.cli.output import console_report
from bert_jax.pretraining.run import pretrain
from bert_jax.pretraining.start import model_values
from bert_jax.recipes.load import load_config
from bert_jax.runs.work_dir import MODEL_NAME
from bert_jax.training import distributed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `pretrain`."""
    add_config_argument(parser)
    parser.add_argument(
        "--init",
        metavar="DIR",
        help="the work directory of `pretrain`, `import` or `finetune` whose parameters to start "
        "from (--config.init_from); sets every --config.model key that they require and that is "
        "not given",
    )
    add_distributed_argument(parser)
    add_from_step_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train to the end of the last phase, or until a signal stops the run."""
    config = load_config(args.config, _overrides(args), kind="pretrain")
    distributed.join(force=args.distributed)
    stop = distributed.StopRequest()
    result = pretrain(config, from_step=args.from_step, on_report=console_report, stop=stop)
    return 0 if result.finished else stop.exit_code


def _overrides(args: argparse.Namespace) -> Sequence[str]:
    """Return the overrides with those that `--init` adds."""
    if not args.init:
        return args.config_overrides
    overrides = add_override(args.config_overrides, "init_from", args.init, "--init")
    source = Path(args.init)
    if not (source / MODEL_NAME).is_file():
        # The source of a run that has begun may be deleted: the run has the same model.
        work_dir = Path(load_config(args.config, overrides, kind="pretrain").work_dir)
        source = work_dir if (work_dir / MODEL_NAME).is_file() else source
    given = {word.partition("=")[0] for word in overrides}
    required = {f"--config.model.{key}": value for key, value in model_values(source).items()}
    return [*overrides, *(f"{key}={required[key]}" for key in sorted(required.keys() - given))]
