"""Measure corpus preparation against a plain `tokenizers` loop over the same text.

    bert-jax bench prepare --input corpus.jsonl.xz --tokenizer vocab.txt

The plain loop has the documents in memory and calls `encode_batch` on their lines, on as many
threads as there are workers; preparation is timed as a whole, from the start of its processes to
the renamed manifest. The text is held in memory, so give a part of a large corpus.
"""

from __future__ import annotations

import argparse

from bert_jax.cli.arguments import add_number
from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
    source_options,
)
from bert_jax.corpus.benchmark import measure_preparation
from bert_jax.tokenizers.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench prepare`."""
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    add_workers_argument(parser)
    add_number(parser, "--repeat", "number of measurements, of which the best counts", default=3)


def run(args: argparse.Namespace) -> int:
    """Time both in turns, and print the ratio of their speeds."""
    for name, value in (("--repeat", args.repeat), ("--workers", args.workers)):
        if value < 1:
            raise ValueError(f"{name}={value}: expected at least 1")
    speed = measure_preparation(
        args.input,
        Tokenizer.load(args.tokenizer, lowercase=args.lowercase),
        sources=source_options(args),
        workers=args.workers,
        repeat=args.repeat,
    )
    megabytes = speed.counts.text_bytes / 1e6
    print(
        f"{megabytes:.1f} MB of text, {speed.counts.documents:,} documents, {args.workers} workers"
    )
    for name, seconds in (
        ("plain encode_batch", speed.plain_seconds),
        ("prepare", speed.prepare_seconds),
    ):
        print(f"{name:18}  {seconds:8.2f} s  {megabytes / seconds:6.2f} MB/s")
    print(
        f"ratio {speed.plain_seconds / speed.prepare_seconds:.2f}; a worker held at most "
        f"{speed.peak_worker_memory / 2**20:.0f} MiB"
    )
    return 0
