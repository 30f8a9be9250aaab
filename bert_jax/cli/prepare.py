"""Prepare a corpus for training from raw text.

    bert-jax prepare --input books/*.txt wiki.jsonl.gz --tokenizer vocab.txt --output corpus

Inputs can be any mix of plain text (where a blank line ends a document), JSON Lines, Parquet,
Arrow, MDS, tfds:NAME/CONFIG and hf:OWNER/NAME. Plain text and JSON Lines may be compressed as .gz,
.zst or .xz. A directory stands for the files in it, and a pattern for the files that match it. If
the command is killed, running it again continues after the finished shards. If the corpus is
already finished, its files are checked against their checksums.

On many machines, run the command with --part 0/N, --part 1/N and so on, in any order, and then once
with --merge. All of these commands need the same options and the same output directory.
Alternatively, --runner prepares the corpus with Apache Beam.
"""

import argparse
import sys
from pathlib import Path

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
)
from bert_jax.corpus.engine import Engine
from bert_jax.corpus.inputs import PrepareOptions
from bert_jax.corpus.manifest import verify_shards
from bert_jax.corpus.parts import PreparedPart
from bert_jax.corpus.prepare import PreparedCorpus, prepare_as
from bert_jax.corpus.progress import Progress, ProgressCallback
from bert_jax.corpus.report import (
    corpus_table,
    part_line,
    preparation_line,
    preparation_speed,
    verification_line,
)
from bert_jax.field_options import add_field_options, option_values, options_of_fields
from bert_jax.filtering.options import FilterOptions
from bert_jax.terminal import ProgressLine
from bert_jax.text.documents import SourceOptions
from bert_jax.text.python_docs import write_python_docs
from bert_jax.validation import renamed_in_errors

# The options to put into error messages instead of the parameters of `prepare`.
_OPTIONS = options_of_fields(PrepareOptions) | options_of_fields(FilterOptions)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `prepare`."""
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    output = "directory to create, or an unfinished corpus to continue"
    parser.add_option("--output", "DIR", output, required=True)
    add_field_options(parser, PrepareOptions, ("max_length", "max_documents_per_record"))
    _add_held_out_arguments(parser)
    add_workers_argument(parser)
    add_field_options(parser, PrepareOptions, ("language",))
    parser.add_flag(
        "--allow-unknown",
        "allow a corpus in which more than a fifth of the tokens are unknown to the tokenizer; by "
        "default, this is an error",
    )
    add_field_options(parser, PrepareOptions, ("unit_bytes",))
    add_field_options(parser, FilterOptions)
    add_field_options(parser, Engine)


def _add_held_out_arguments(parser: ArgumentParser) -> None:
    parser.add_option(
        "--held-out",
        "FRACTION",
        "fraction of documents to hold out for evaluation, chosen by hash (default: "
        f"{PrepareOptions.heldout_fraction}, with --held-out-input 0)",
        kind=float,
    )
    parser.add_list(
        "--held-out-input",
        "PATH",
        "text to evaluate on instead of a fraction of the documents, specified like --input. "
        "Documents in this text are removed from --input; whole documents are compared, ignoring "
        "case and whitespace",
        default=[],
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus, with progress on stderr and the result on stdout."""
    line, latest = ProgressLine(sys.stderr), list[Progress]()

    def show(progress: Progress) -> None:
        latest[:] = [progress]
        line.show(lambda: preparation_line(progress))

    try:
        corpus = _prepare(args, show)
        if isinstance(corpus, PreparedCorpus) and not latest:
            verify_shards(
                corpus.path,
                corpus.manifest,
                lambda *done: line.show(lambda: verification_line(*done)),
            )
    finally:
        line.end()
    if isinstance(corpus, PreparedPart):
        print(part_line(corpus))
        return 0
    if not latest:
        print(f"{args.output} is already finished and matches its checksums: nothing to do")
    print("\n".join(corpus_table(corpus.manifest)))
    if latest and args.runner is None:
        print(preparation_speed(latest[0], args.workers))
    return 0


def _prepare(args: argparse.Namespace, show: ProgressCallback) -> PreparedCorpus | PreparedPart:
    # Match the value too, because "held_out" could be a part of a file name (held_out.txt).
    values = {f"{name}={vars(args)[name]}" for name in ("held_out", "part", "runner")}
    exact = {value: f"--{value.replace('_', '-', 1)}" for value in values}
    with renamed_in_errors(_OPTIONS | exact):
        return prepare_as(
            Engine(**option_values(Engine, args)),
            args.input,
            args.tokenizer,
            args.output,
            lowercase=args.lowercase,
            held_out=args.held_out,
            held_out_inputs=args.held_out_input,
            sources=SourceOptions(**option_values(SourceOptions, args)),
            filters=FilterOptions(**option_values(FilterOptions, args)),
            workers=args.workers,
            allow_unknown=args.allow_unknown,
            on_progress=show,
            **option_values(PrepareOptions, args),
        )


def add_demo_corpus_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `demo-corpus`."""
    name = "corpus file to write, whose name ends in .jsonl"
    parser.add_output_file("--output", name, kind=Path, required=True)


def demo_corpus(args: argparse.Namespace) -> int:
    """Write a JSON Lines corpus of the English documentation that comes with Python.

        bert-jax demo-corpus --output python_docs.jsonl

    The corpus consists of the language reference and the docstrings of the standard library, 2.3 MB
    in all. No download is needed.
    """
    with renamed_in_errors({"path": "--output"}):
        print(f"{args.output}: {write_python_docs(args.output)}")
    return 0
