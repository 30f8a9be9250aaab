r"""Fine-tune a pretrained model on a task, or go on exactly where a run stopped.

    bert-jax finetune --config configs/finetune/sst2.py --init runs/mine --data data/SST-2
    bert-jax finetune --config configs/finetune/table.py --init runs/mine --data reviews.csv

The same command starts a run, continues it after a kill, and does nothing once it is finished. The
validation set is scored as the task's official scorer does; the checkpoint that did best is the one
that `evaluate`, `predict` and `export` take.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

import jax

from bert_jax.cli.arguments import (
    add_data_argument,
    add_distributed_argument,
    add_from_step_argument,
)
from bert_jax.cli.config import add_config_argument, add_override
from bert_jax.cli.finetune_run import FinetuneRun, identity, open_run
from bert_jax.conversion import to_plain
from bert_jax.finetuning.config import with_columns, with_file
from bert_jax.finetuning.outcome import read_outcome
from bert_jax.finetuning.scoring import LOSS
from bert_jax.recipes.load import load_config
from bert_jax.runs.outputs import check_work_dir_kind
from bert_jax.runs.ownership import only_writer
from bert_jax.runs.runtime import Compilations, keep_programs, versions
from bert_jax.training import distributed
from bert_jax.training.distributed import StopRequest
from bert_jax.training.progress import format_metric
from bert_jax.training.sharding import make_mesh


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `finetune`."""
    add_config_argument(parser)
    parser.add_argument(
        "--init",
        metavar="DIR",
        help="the work directory of `pretrain`, `import` or `finetune` to start from "
        "(--config.init_from)",
    )
    add_data_argument(parser)
    add_distributed_argument(parser)
    add_from_step_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Train to the last epoch, or until told to stop."""
    overrides = args.config_overrides
    if args.init:
        overrides = add_override(overrides, "init_from", args.init, "--init")
    config = load_config(args.config, overrides, kind="finetune")
    config = with_file(config, args.data, "train") if args.data else config
    check_work_dir_kind(Path(config.work_dir))
    distributed.join(force=args.distributed)
    keep_programs()
    mesh = make_mesh(config.mesh)
    # Before anything is read together, which processes of other configs would do otherwise.
    given = {"the config": to_plain(config), "--from-step": args.from_step}
    distributed.check_same({**given, "the versions": versions()})
    run = open_run(with_columns(config), mesh)
    distributed.check_same({"the model and the examples": identity(run)})
    with ExitStack() as closing:
        compiled = closing.enter_context(Compilations())
        # Left last: the save under way is finished before a signal may kill again.
        stop = closing.enter_context(StopRequest())
        if jax.process_index() == 0:
            closing.enter_context(only_writer(Path(config.work_dir)))
        finished = run.train(stop, closing, args.from_step)
    if finished and jax.process_index() == 0:
        print("\n".join([*conclude(run), *compiled.lines()]))
    return 0 if finished else stop.exit_code


_BY_CHANCE = (
    "is possible without reading the text. This can happen with few examples; try another seed or "
    "learning rate (bert-jax sweep), or more epochs"
)


def conclude(run: FinetuneRun) -> list[str]:
    """Lines: the scores of the best checkpoint, and where things are."""
    found = read_outcome(run.work_dir)
    assert found is not None
    lines = [f"best after step {found.step:,} by {run.best_metric}:"]
    lines += [f"  {name:28s} {format_metric(name, x)}" for name, x in found.scores.items()]
    judged = run.data.best_metric if run.best_metric.endswith(LOSS) else run.best_metric
    score, chance = found.scores[judged], run.data.chance(judged)
    if score <= chance:
        reached, had = format_metric(judged, score), format_metric(judged, chance)
        lines.append(f"NOTE  {judged} is {reached}; {had} {_BY_CHANCE}")
    return [*lines, *(f"predictions: {file}" for file in found.predictions)]
