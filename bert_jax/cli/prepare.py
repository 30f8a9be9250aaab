"""Prepare a corpus for training from raw text.

    bert-jax prepare --input books/*.txt wiki.jsonl.gz --tokenizer vocab.txt --output corpus

Inputs are plain text (a blank line ends a document), JSON Lines, both also compressed as .gz, .zst
or .xz, Parquet, and tfds:NAME/CONFIG, in any mix. A directory or a pattern is replaced by the files
that it contains or matches. After a kill the same command continues after the finished shards; for
a finished corpus it compares the files with their checksums.
"""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from bert_jax.argument_parser import ArgumentParser, option_name
from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
    source_options,
)
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.manifest import verify_shards
from bert_jax.corpus.preparation import Progress, ProgressCallback
from bert_jax.corpus.prepare import PreparedCorpus, prepare
from bert_jax.corpus.report import corpus_table, preparation_line, preparation_speed
from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.terminal import ProgressLine
from bert_jax.text.python_docs import write_python_docs
from bert_jax.validation import renamed_in_errors

# Options by the parameters of `prepare` that errors name.
_OPTIONS = {
    name: option_name(name) for name in ("max_length", "max_documents_per_record", "unit_bytes")
}


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `prepare`."""
    options = PrepareOptions()
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    parser.add_option("--output", "DIR", "new directory, or an unfinished corpus", required=True)
    max_length = "positions of a training sequence, special tokens included"
    parser.add_number("--max-length", max_length, default=options.max_length)
    parser.add_number(
        "--max-documents-per-record",
        "maximum number of documents packed into one sequence (default: max-length / 32)",
    )
    _add_held_out_arguments(parser, options)
    add_workers_argument(parser)
    language = "language whose rules split the sentences, as ISO 639-1"
    parser.add_option("--language", "CODE", language, default=options.language)
    parser.add_flag(
        "--allow-unknown",
        "permission for a corpus with more than a fifth of tokens unknown to the tokenizer, "
        "which is otherwise refused",
    )
    unit_bytes = "bytes of text in one shard; a worker holds about five times as much"
    parser.add_number("--unit-bytes", unit_bytes, default=options.unit_bytes)


def _add_held_out_arguments(parser: ArgumentParser, options: PrepareOptions) -> None:
    parser.add_option(
        "--held-out",
        "SHARE",
        "share of the documents held out for evaluation, chosen by hash (default: "
        f"{options.heldout_fraction}, with --held-out-input 0)",
        kind=float,
    )
    parser.add_list(
        "--held-out-input",
        "PATH",
        "text to evaluate on instead of a share, given as for --input; its documents are left out "
        "of --input, compared as a whole and ignoring case and white space",
        default=[],
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus, showing progress on stderr and the result on stdout."""
    line, latest = ProgressLine(sys.stderr), list[Progress]()

    def show(progress: Progress) -> None:
        latest[:] = [progress]
        line.show(lambda: preparation_line(progress))

    try:
        corpus = _prepare(args, show)
        if not latest:
            verify_shards(
                corpus.path, corpus.manifest, lambda *of: line.show(lambda: _verified(*of))
            )
    finally:
        line.end()
    if not latest:
        print(f"{args.output} was finished before and matches its checksums: nothing to do")
    print("\n".join(corpus_table(corpus.manifest)))
    if latest:
        print(preparation_speed(latest[0], args.workers))
    return 0


def _prepare(args: argparse.Namespace, show: ProgressCallback) -> PreparedCorpus:
    # Not "held_out" without the value, since a file may be called held_out.txt.
    held_out = {f"held_out={args.held_out}": f"--held-out={args.held_out}"}
    with renamed_in_errors(_OPTIONS | held_out):
        return prepare(
            args.input,
            args.tokenizer,
            args.output,
            lowercase=args.lowercase,
            max_length=args.max_length,
            max_documents_per_record=args.max_documents_per_record,
            held_out=args.held_out,
            held_out_inputs=args.held_out_input,
            language=args.language,
            unit_bytes=args.unit_bytes,
            sources=source_options(args),
            workers=args.workers,
            allow_unknown=args.allow_unknown,
            on_progress=show,
        )


def _verified(num_bytes: int, total: int) -> str:
    return f"checking the finished corpus: {num_bytes / total:6.1%} of {total / 1e6:,.1f} MB"


def add_demo_corpus_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `demo-corpus`."""
    name = "corpus file, whose name ends in .jsonl"
    parser.add_option("--output", "FILE", name, kind=Path, required=True)


def demo_corpus(args: argparse.Namespace) -> int:
    """Write the English texts that come with Python as a corpus, one JSON object per line.

        bert-jax demo-corpus --output python_docs.jsonl

    They are the language reference and the docstrings of the standard library, 2.3 MB in all, and
    need no download.
    """
    if args.output.suffix != ".jsonl":
        raise ValueError(f"--output={args.output}: expected a name that ends in .jsonl")
    check_outside_corpora(args.output, "--output")
    written = write_python_docs(args.output)
    print(
        f"{args.output}: {written.num_documents} documents, {written.num_bytes / 1e6:.2f} MB of "
        f"text from {platform.python_implementation()} {platform.python_version()}"
    )
    return 0
