"""Measure corpus preparation against a plain `tokenizers` loop over the same text.

    bert-jax bench prepare --input corpus.jsonl.xz --tokenizer vocab.txt

The plain loop has the documents in memory and calls `encode_batch` on their lines, on as many
threads as there are workers; preparation is timed whole, from the start of its processes to the
renamed manifest. The text is held in memory, so give a part of a large corpus.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
    source_options,
)
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.prepare import Progress, make_corpus
from bert_jax.text.documents import SourceCounts
from bert_jax.text.sources import read_documents
from bert_jax.tokenizers.tokenizer import Tokenizer

_LINES_PER_CALL = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `bench prepare`."""
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    add_workers_argument(parser)
    parser.add_argument(
        "--repeat",
        type=int,
        default=3,
        metavar="N",
        help="the best of N is reported (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Time both, in turns, and print the ratio of their speeds."""
    for name, value in (("--repeat", args.repeat), ("--workers", args.workers)):
        if value < 1:
            raise ValueError(f"{name} is {value}; expected at least 1")
    tokenizer = Tokenizer.load(args.tokenizer, lowercase=args.lowercase)
    # the two the tokenizers library reads, before its first parallel call
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    os.environ["RAYON_NUM_THREADS"] = str(args.workers)
    options = source_options(args)
    counts = SourceCounts()
    texts = [document.text for document in read_documents(args.input, options, counts)]
    plain, prepared, memory = [], [], 0
    for _ in range(args.repeat):
        with tempfile.TemporaryDirectory() as scratch:
            tokenizer.save(Path(scratch, "tokenizer"))
            plain.append(_time_plain(texts, Path(scratch, "tokenizer", "tokenizer.json")))
            seconds, progress = _time_prepare(args, tokenizer, Path(scratch, "corpus"))
            prepared.append(seconds)
            memory = max(memory, progress.peak_worker_memory)
    megabytes = counts.text_bytes / 1e6
    print(f"{megabytes:.1f} MB of text, {counts.documents:,} documents, {args.workers} workers")
    print(f"plain encode_batch  {min(plain):8.2f} s  {megabytes / min(plain):6.2f} MB/s")
    print(f"prepare             {min(prepared):8.2f} s  {megabytes / min(prepared):6.2f} MB/s")
    print(f"ratio {min(plain) / min(prepared):.2f}; a worker held at most {memory / 2**20:.0f} MiB")
    return 0


def _time_plain(texts: list[str], path: Path) -> float:
    from tokenizers import Tokenizer as PlainTokenizer

    plain = PlainTokenizer.from_file(str(path))
    lines = [line for text in texts for line in text.split("\n") if line]
    num_tokens = 0
    start = time.perf_counter()
    for begin in range(0, len(lines), _LINES_PER_CALL):
        batch = plain.encode_batch(lines[begin : begin + _LINES_PER_CALL], add_special_tokens=False)
        num_tokens += sum(len(encoding.ids) for encoding in batch)
    return time.perf_counter() - start


def _time_prepare(
    args: argparse.Namespace, tokenizer: Tokenizer, output: Path
) -> tuple[float, Progress]:
    reported: list[Progress] = []
    options = PrepareOptions(heldout_fraction=0, sources=source_options(args))
    start = time.perf_counter()
    make_corpus(
        args.input, tokenizer, output, options, args.workers, reported.append, allow_unknown=True
    )
    return time.perf_counter() - start, reported[-1]
