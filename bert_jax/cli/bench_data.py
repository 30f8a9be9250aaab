"""Measure how fast training batches are made, from records on disk to ready arrays.

    bert-jax bench data --corpus corpus --batch-size 256 --workers 0 1 2

Without --corpus, random documents with sentence and document lengths typical of English are first
packed into a temporary corpus. The first result is the speed of one core: the process is pinned to
a core and makes the batches itself. The other results are the speed of the training loop's loader
with different numbers of worker processes, where 0 means a thread of the main process.

All positions count as tokens, as in a model's throughput; the percentage that is not padding is
also printed. Each result is the mean over --seconds. The files are read from the page cache if they
were read or written recently and fit in memory.
"""

import argparse
from typing import get_args

from bert_jax.argument_parser import ArgumentParser, above_zero, option_names
from bert_jax.corpus.corpus import Corpus
from bert_jax.corpus.synthetic import MAX_LENGTH, MILLION_TOKENS, corpus_to_measure
from bert_jax.objectives import SentencePairs
from bert_jax.pipeline.benchmark import measured_lines
from bert_jax.pipeline.examples import ExampleConfig, ExampleSource
from bert_jax.processes import check_workers
from bert_jax.validation import renamed_in_errors


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `bench data`."""
    parser.add_option("--corpus", "DIR", "corpus made by `bert-jax prepare`")
    parser.add_number("--batch-size", "number of rows in a batch", default=256, minimum=1)
    parser.add_option(
        "--seconds", "S", "duration of each measurement in seconds", kind=above_zero, default=5.0
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="*",
        default=[0, 1, 2],
        metavar="N",
        help="numbers of worker processes to measure the loader with (default: 0 1 2)",
    )
    parser.add_choice(
        "--sentence-pairs",
        get_args(SentencePairs),
        "kind of sentence pairs",
        default="next_sentence",
    )
    group = parser.add_argument_group("temporary corpus (without --corpus)")
    length = f"number of positions in a row (default: {MAX_LENGTH})"
    group.add_argument("--max-length", type=int, metavar="N", help=length)
    millions = f"number of tokens in millions (default: {MILLION_TOKENS})"
    group.add_argument("--million-tokens", type=float, metavar="M", help=millions)


def run(args: argparse.Namespace) -> int:
    """Print the throughput of one core, its time per stage, and the throughput of the loader."""
    for num_workers in args.workers:
        check_workers("--workers", num_workers)
    sizes = {"max_length": args.max_length, "million_tokens": args.million_tokens}
    if not args.corpus:
        print("no --corpus given: measuring on a temporary corpus of random documents", flush=True)
    with (
        renamed_in_errors(option_names(*sizes)),
        corpus_to_measure(args.corpus, **sizes) as (directory, vocabulary),
    ):
        config = ExampleConfig(seed=0, sentence_pairs=args.sentence_pairs)
        examples = ExampleSource(Corpus(directory, "train"), vocabulary, config)
        for line in measured_lines(examples, args.batch_size, args.seconds, args.workers):
            print(line, flush=True)
    return 0
