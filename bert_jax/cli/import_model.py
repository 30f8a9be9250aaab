"""Bring a model of another framework in: a work directory to start from, evaluate and export.

    bert-jax import bert-base-uncased/ --output models/base
    bert-jax import google-bert/bert-base-uncased --output models/base     # from the hub
    bert-jax import uncased_L-12_H-768_A-12/bert_model.ckpt --output models/base
    bert-jax import models/theirs --head classification --labels no yes --output models/mine

Every tensor of the source is accounted for: one that is missing, left over or of a wrong shape is
listed and the import refused. A head that `--head` asks for and the source does not have is drawn
anew, and what it has besides is left out; both are listed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from bert_jax.cli.arguments import free_text
from bert_jax.interop.hub import local_directory
from bert_jax.interop.huggingface.config import Wanted
from bert_jax.interop.huggingface.families import family_of
from bert_jax.interop.huggingface.load import open_directory
from bert_jax.interop.tensorflow_import import checkpoint_prefix, open_checkpoint
from bert_jax.models.model import HEADS, Problem
from bert_jax.runs.outputs import check_output, new_directory
from bert_jax.runs.work_dir import CHECKPOINTS_NAME, PAIRS, TOKENIZER_NAME, write_model
from bert_jax.training.checkpoint_parameters import save_parameters
from bert_jax.validation import check_seed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `import`."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a Hugging Face directory, a model's name on the hub, or a TensorFlow checkpoint of "
        "Google's release (bert_model.ckpt, or the directory that holds one)",
    )
    parser.add_argument("--output", required=True, metavar="DIR", help="the work directory to make")
    parser.add_argument(
        "--head", choices=HEADS, help="which head to take (default: all that the source has)"
    )
    parser.add_argument(
        "--labels",
        nargs="+",
        action="extend",
        type=free_text,
        default=[],
        metavar="NAME",
        help="label names of a randomly initialized classifier, or new names for the source's own",
    )
    parser.add_argument(
        "--problem",
        choices=get_args(Problem),
        help="what the scores of a classification mean (default: as the source says; for one drawn "
        "anew, single_label, or regression with one label)",
    )
    parser.add_argument(
        "--tokenizer", metavar="FILE_OR_DIR", help="of the model, where SOURCE does not hold it"
    )
    parser.add_argument(
        "--max-positions",
        type=int,
        metavar="N",
        help="keep the first N positions (default: all the source has)",
    )
    parser.add_argument(
        "--revision", metavar="NAME", help="branch, tag or commit on the hub (default: main)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of a randomly initialized head (default: 0)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the work directory and print what became of every tensor."""
    check_seed(args.seed, "--seed")
    check_output(Path(args.output), "--output")
    wanted = Wanted(args.head, tuple(args.labels), args.problem, args.max_positions)
    is_huggingface = (Path(args.source) / "config.json").is_file()
    prefix = None if is_huggingface else checkpoint_prefix(Path(args.source))
    if prefix and args.revision is not None:
        raise ValueError(
            f"--revision {args.revision}: {args.source} is local and has no revisions. "
            "Leave --revision out"
        )
    directory, commit = (prefix, None) if prefix else local_directory(args.source, args.revision)
    found = (open_checkpoint if prefix else open_directory)(
        directory, wanted, tokenizer=None if args.tokenizer is None else Path(args.tokenizer)
    )
    with new_directory(Path(args.output)) as target:
        origin = {"command": "bert-jax import", "source": args.source}
        if commit:
            origin["revision"] = commit
        if found.config.head in ("pretraining", "next_sentence"):
            origin[PAIRS] = found.pairs
        if found.account.fresh:
            origin["randomly initialized"] = ", ".join(found.account.fresh)
        save_parameters(target / CHECKPOINTS_NAME, found.parameters(args.seed), origin)
        found.tokenizer.save(target / TOKENIZER_NAME)
        settings = found.sentence_embedding
        write_model(
            found.config,
            origin,
            target,
            tokenizer=found.tokenizer,
            sentence_embedding=settings,
        )
    for line in (*found.notes, *found.account.lines()):
        print(line)
    if settings is not None:
        rows = (f"{name} {value}" for name, value in settings.described().items())
        print(f"sentence embedding: {', '.join(rows)}")
    title = family_of(found.config.encoder).title
    print(f"{args.output}: {title} with the head {found.config.head!r}")
    return 0
