"""Print the status of a run, extract or verify its checkpoints, and add words to a vocabulary."""

import argparse
import json

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_work_dir_argument
from bert_jax.runs.checkpoints import BEST, NEWEST, parse_step
from bert_jax.runs.extraction import extract
from bert_jax.runs.new_words import add_words
from bert_jax.runs.status import read_status
from bert_jax.runs.verification import verify_steps
from bert_jax.tokenizers.new_words import read_words
from bert_jax.validation import renamed_in_errors

DAMAGED = 1


def add_run_status_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `status`."""
    add_work_dir_argument(parser, "work directory of a run, or output directory of a sweep")
    parser.add_flag("--json", "print the status as a JSON object")


def run_status(args: argparse.Namespace) -> int:
    """Print whether a run is alive, how far it has got, and how its wall-clock time was spent.

        bert-jax status runs/mine

    The run may be in progress on any machine, if WORKDIR is on a shared disk or in a bucket. The
    categories of time are the same as in Google's goodput library, over all starts of the run.
    """
    status = read_status(args.work_dir)
    print(json.dumps(status.to_json()) if args.json else status)
    return 0


def add_extract_checkpoint_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `extract`."""
    add_work_dir_argument(
        parser, "work directory of a `pretrain` or `finetune` run, which may be in progress"
    )
    parser.add_option(
        "--step",
        "N",
        f"step of the checkpoint, or '{NEWEST}', or '{BEST}' for the saved checkpoint with the "
        "best value of the held-out metric in the run's config",
        default=NEWEST,
    )
    parser.add_number(
        "--average",
        "number of checkpoints whose parameters are averaged: the one at --step and earlier ones",
        1,
        minimum=1,
    )
    average = "extract the moving average of the parameters (averaging.ema_decay) instead"
    parser.add_flag("--ema", average)
    parser.add_flag(
        "--generator", "extract ELECTRA's generator, which predicts masks, not the discriminator"
    )
    parser.add_option("--output", "DIR", "work directory to create", required=True)


def extract_checkpoint(args: argparse.Namespace) -> int:
    """Copy one checkpoint to a new work directory that can be evaluated, exported or shared.

        bert-jax extract runs/mine --step best --output models/best
        bert-jax extract runs/mine --step 400000 --output models/400k
        bert-jax extract runs/mine --average 5 --output models/mean

    The new directory contains the parameters, which are a third of the size of an AdamW checkpoint,
    and the run's config, log and manifests. A new run can start from this directory (`init_from`),
    but no run can resume in it.
    """
    step = parse_step(args.step)
    choices = {"average": args.average, "ema": args.ema, "generator": args.generator}
    result = extract(args.work_dir, args.output, step, **choices)
    print(f"{args.output}: {result.description(args.work_dir, ema=args.ema)}")
    return 0


def add_verify_checkpoints_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `verify-checkpoint`."""
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="work directory, its checkpoints directory, or a single checkpoint in that directory",
    )
    parser.add_number("--step", "step of the checkpoint to verify (default: all steps)")


def verify_checkpoints(args: argparse.Namespace) -> int:
    """Check saved checkpoints against the checksums recorded when they were saved.

        bert-jax verify-checkpoint runs/mine
        bert-jax verify-checkpoint runs/mine --step 400000

    The command prints one line per checkpoint, and exits with code 1 if any checkpoint is damaged.
    Every other command also verifies the checkpoint that it loads, and training resumes from the
    newest intact checkpoint.
    """
    damaged = False
    for line, is_damaged in verify_steps(args.directory, args.step):
        damaged = damaged or is_damaged
        print(line, flush=True)
    return DAMAGED if damaged else 0


def add_add_words_to_model_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `add-words`."""
    add_work_dir_argument(parser, "work directory of a model with a WordPiece vocabulary")
    words = "text file with one word per line; words that are already one token are left out"
    parser.add_option("--words", "FILE", words, required=True)
    parser.add_option("--output", "DIR", "work directory to create", required=True)


def add_words_to_model(args: argparse.Namespace) -> int:
    """Add words to a model's vocabulary, so that its tokenizer keeps each of them together.

        bert-jax add-words models/base --words terms.txt --output models/base-terms

    The words first replace [unusedN] tokens, and then get new rows in the token table. Each new
    embedding and output bias is the mean over the tokens that the word was split into before.
    Prepare corpora again with the new tokenizer, and then continue the model's pretraining.
    """
    with renamed_in_errors({"words:": "--words:"}):
        result = add_words(args.work_dir, read_words(args.words), args.output)
    print("\n".join(result.lines()))
    return 0
