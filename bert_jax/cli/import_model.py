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
from typing import get_args

from bert_jax.cli.arguments import free_text
from bert_jax.interop.import_model import import_model
from bert_jax.models.model import HEADS, Problem
from bert_jax.validation import renamed_in_errors


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
    _add_source_details(parser)


def _add_source_details(parser: argparse.ArgumentParser) -> None:
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
    with renamed_in_errors({"seed": "--seed"}):
        result = import_model(
            args.source,
            args.output,
            head=args.head,
            labels=args.labels,
            problem=args.problem,
            tokenizer=args.tokenizer,
            max_positions=args.max_positions,
            revision=args.revision,
            seed=args.seed,
        )
    for line in (*result.notes, *result.tensors):
        print(line)
    if result.sentence_embedding is not None:
        rows = (f"{name} {value}" for name, value in result.sentence_embedding.described().items())
        print(f"sentence embedding: {', '.join(rows)}")
    print(f"{args.output}: {result.family} with the head {result.config.head!r}")
    return 0
