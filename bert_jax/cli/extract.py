"""Make a work directory of one checkpoint: to start from, evaluate and export, or to pass on.

    bert-jax extract runs/mine --step best --output models/best
    bert-jax extract runs/mine --step 400000 --output models/400k

It has the parameters alone, a third of what a checkpoint of AdamW holds, with the run's config, log
and manifests. No run goes on in it; a new one starts from it (`init_from`).
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import jax

from bert_jax.conversion import to_dataclass
from bert_jax.json_files import expecting_fields, read_json_object
from bert_jax.models.config import ComputeConfig
from bert_jax.runs.outputs import new_directory
from bert_jax.runs.ownership import RESOLVED_NAME
from bert_jax.runs.work_dir import (
    CHECKPOINTS_NAME,
    TOKENIZER_NAME,
    Comparison,
    best_so_far,
    load_model_parameters,
    named_step,
    read_comparison,
    read_model,
    read_sentence_embedding,
    read_tokenizer,
    read_usage,
    write_model,
)
from bert_jax.training.checkpoint_files import identity_of, newest_step
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.training.metrics_log import LOG_NAME, copy_metrics

BEST, NEWEST = "best", "newest"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `extract`."""
    parser.add_argument(
        "work_dir",
        metavar="WORKDIR",
        help="of `pretrain` or `finetune`; a run may be at work there",
    )
    parser.add_argument(
        "--step",
        required=True,
        metavar="N",
        help=f"of the checkpoint; '{NEWEST}', or '{BEST}' by the held-out metric of the run's "
        "config among the checkpoints that are there",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the work directory to make")


def run(args: argparse.Namespace) -> int:
    """Write the directory, whole or not at all."""
    work_dir = Path(args.work_dir)
    config, origin = read_model(work_dir)
    tokenizer = read_tokenizer(work_dir, config.encoder)
    step = _step(work_dir, args.step)
    identity = identity_of(work_dir / CHECKPOINTS_NAME, step)
    with new_directory(Path(args.output)) as target:
        compute = ComputeConfig(dtype="float32", attention="xla")
        parameters = load_model_parameters(work_dir, config, compute, step)
        # Not the run's own identity, with which it would go on without its optimizer's state.
        alone = {**identity, "parameters alone": f"those of step {step}"}
        save_parameters(target / CHECKPOINTS_NAME, jax.device_get(parameters), alone, step)
        for file in (work_dir / RESOLVED_NAME, *work_dir.glob("manifest-*.json")):
            if file.is_file():
                shutil.copyfile(file, target / file.name)
        if (log := work_dir / LOG_NAME).is_file():
            copy_metrics(log, target / LOG_NAME, up_to=step)
        tokenizer.save(target / TOKENIZER_NAME)
        write_model(
            config,
            origin,
            target,
            tokenizer=tokenizer,
            usage=read_usage(work_dir),
            sentence_embedding=read_sentence_embedding(work_dir),
        )
    print(f"{args.output}: the parameters of step {step:,} of {args.work_dir}")
    return 0


def _step(work_dir: Path, told: str) -> int:
    """The step that `--step` means.

    Raises:
      ValueError: it means none.
    """
    if told == NEWEST:
        return newest_step(work_dir / CHECKPOINTS_NAME)
    if told == BEST:
        return _best(work_dir)
    if not told.isdecimal():
        raise ValueError(f"--step {told}: expected a number of steps, '{BEST}' or '{NEWEST}'")
    return int(told)


def _best(work_dir: Path) -> int:
    named = named_step(work_dir)
    if named is not None:  # of a fine-tuning run that has ended
        return named
    by = read_comparison(work_dir) or _comparison_of(work_dir)
    found = best_so_far(work_dir, by)
    if found is None:
        raise ValueError(
            f"{work_dir}: no checkpoint that is there was evaluated with {by.metric}, so none is "
            f"known to be best (checkpoint.keep_best keeps such): give a step, or '{NEWEST}'"
        )
    return found


def _comparison_of(work_dir: Path) -> Comparison:
    """By what a pretraining run keeps its best checkpoints."""
    file = work_dir / RESOLVED_NAME
    if not file.is_file():
        raise ValueError(
            f"{work_dir}: no {RESOLVED_NAME} in it, which says what is best: give --step {NEWEST} "
            "or a number"
        )
    with expecting_fields(file):
        kept = read_json_object(file)["checkpoint"]
        values = {"metric": kept["best_metric"], "lower_is_better": kept["lower_is_better"]}
        return to_dataclass(Comparison, values, f"{file}: checkpoint")
