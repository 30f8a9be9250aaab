"""Convert a model from another framework to a work directory, to train, evaluate or export it.

    bert-jax import bert-base-uncased/ --output models/base
    bert-jax import google-bert/bert-base-uncased --output models/base     # from the hub
    bert-jax import uncased_L-12_H-768_A-12/bert_model.ckpt --output models/base
    bert-jax import models/other --head classification --labels no yes --output models/mine

Every tensor in the source is accounted for. If any tensors are missing, unused or of the wrong
shape, they are listed and nothing is imported. If the source lacks the head that --head requests,
the head is randomly initialized. Other heads in the source are left out. The output lists the
parameters that were randomly initialized and the tensors that were left out.
"""

import argparse
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, free_text
from bert_jax.interop.import_model import import_model
from bert_jax.models.model import Problem, head_names
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `import`."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="Hugging Face directory, name of a model on the hub, or TensorFlow checkpoint from "
        "Google's release (bert_model.ckpt, or its directory)",
    )
    parser.add_option("--output", "DIR", "work directory to create", required=True)
    parser.add_choice("--head", head_names(), "head to import (default: all heads in the source)")
    parser.add_list(
        "--labels",
        "NAME",
        "label names for a randomly initialized classifier, or new names for the source's labels",
        kind=free_text,
        default=[],
    )
    parser.add_choice(
        "--problem",
        get_args(Problem),
        "meaning of a classifier's scores (default: as in the source; for a randomly initialized "
        "classifier, regression if there is one label, else single_label)",
    )
    parser.add_option("--tokenizer", "FILE_OR_DIR", "tokenizer to use if SOURCE has none")
    parser.add_number("--max-positions", "number of leading positions to keep (default: all)")
    parser.add_option("--revision", "NAME", "branch, tag or commit on the hub (default: main)")
    parser.add_number("--seed", "random seed for a new head", default=0)


def run(args: argparse.Namespace) -> int:
    """Import the model, and print how every tensor was used."""
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
    print("\n".join(result.lines()))
    return 0
