"""Compare the speeds of corpus preparation and of a plain `tokenizers` loop.

    bert-jax bench prepare --input corpus.jsonl.xz --tokenizer vocab.txt

Both process the same text. The plain loop holds the documents in memory and calls `encode_batch` on
their lines, with one thread per worker. Preparation is timed from start to finish: from when its
processes start until the manifest is in place. Because the text is held in memory, use only part of
a large corpus.
"""

import argparse

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
)
from bert_jax.corpus.benchmark import measure_preparation
from bert_jax.corpus.report import comparison_lines
from bert_jax.field_options import option_values
from bert_jax.text.documents import SourceOptions
from bert_jax.tokenizers.tokenizer import Tokenizer


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `bench prepare`."""
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    add_workers_argument(parser)
    parser.add_number(
        "--repeat", "number of measurements; the best one counts", default=3, minimum=1
    )


def run(args: argparse.Namespace) -> int:
    """Time preparation and the plain loop alternately, and print the ratio of their speeds."""
    speed = measure_preparation(
        args.input,
        Tokenizer.load(args.tokenizer, lowercase=args.lowercase),
        sources=SourceOptions(**option_values(SourceOptions, args)),
        workers=args.workers,
        repeat=args.repeat,
    )
    print("\n".join(comparison_lines(speed, args.workers)))
    return 0
