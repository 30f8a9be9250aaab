"""Turn raw text into a corpus directory that training reads.

    bert-jax prepare --input books/*.txt wiki.jsonl.gz --tokenizer vocab.txt --output corpus

Inputs are plain text (a blank line ends a document) and JSON Lines, each also as .gz, .zst or
.xz, Parquet, and tfds:NAME/CONFIG, in any mix; a directory or pattern stands for the files in it.
After a kill the same command goes on from its finished shards; on a finished corpus it compares
the files with their checksums.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from bert_jax.cli.output import ProgressLine, clock
from bert_jax.cli.source_arguments import (
    add_source_arguments,
    add_tokenizer_arguments,
    add_workers_argument,
    source_options,
)
from bert_jax.corpus.inputs import SPLIT_KEY, PrepareOptions
from bert_jax.corpus.manifest import Manifest, SplitInfo, verify_shards
from bert_jax.corpus.prepare import prepare
from bert_jax.corpus.progress import Progress
from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.text.python_docs import write_python_docs
from bert_jax.validation import renamed_in_errors

# Options by the parameters of `prepare` that errors name. A file may be called held_out.txt.
_OPTIONS = {
    "max_length": "--max-length",
    "max_documents_per_record": "--max-documents-per-record",
    "held_out is": "--held-out is",
    "unit_bytes": "--unit-bytes",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `prepare`."""
    options = PrepareOptions()
    add_source_arguments(parser)
    add_tokenizer_arguments(parser)
    parser.add_argument("--output", required=True, metavar="DIR", help="new, or one to continue")
    parser.add_argument(
        "--max-length",
        type=int,
        default=options.max_length,
        metavar="N",
        help="positions of a training sequence, special tokens included (default: %(default)s)",
    )
    parser.add_argument(
        "--max-documents-per-record",
        type=int,
        metavar="N",
        help="the most documents packed into one sequence (default: max-length / 32)",
    )
    parser.add_argument(
        "--held-out",
        type=float,
        metavar="SHARE",
        help="share of the documents kept for evaluation, chosen by hash (default: "
        f"{options.heldout_fraction}, with --held-out-input 0)",
    )
    parser.add_argument(
        "--held-out-input",
        nargs="+",
        action="extend",
        default=[],
        metavar="PATH",
        help="text of your own to evaluate on, named as --input is, in place of a share; whole "
        "documents of --input that are in it, case and white space apart, are left out",
    )
    add_workers_argument(parser)
    _add_corpus_arguments(parser, options)


def _add_corpus_arguments(parser: argparse.ArgumentParser, options: PrepareOptions) -> None:
    parser.add_argument(
        "--language",
        default=options.language,
        metavar="CODE",
        help="whose rules find the sentences, as ISO 639-1 (default: %(default)s)",
    )
    parser.add_argument(
        "--allow-unknown",
        action="store_true",
        help="permission for a corpus with more than a fifth of tokens unknown to the tokenizer, "
        "which is otherwise refused",
    )
    parser.add_argument(
        "--unit-bytes",
        type=int,
        default=options.unit_bytes,
        metavar="N",
        help="text in one shard; a worker holds some five times that (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Prepare the corpus, showing progress on stderr and the result on stdout."""
    line, shown = ProgressLine(), list[Progress]()

    def show(progress: Progress) -> None:
        shown[:] = [progress]
        line.show(lambda: _line(progress))

    try:
        with renamed_in_errors(_OPTIONS):
            corpus = prepare(
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
        if not shown:
            verify_shards(
                corpus.path, corpus.manifest, lambda *of: line.show(lambda: _checked(*of))
            )
    finally:
        line.end()
    if not shown:
        print(f"{args.output} was finished before and matches its checksums: nothing to do")
    print(_table(corpus.manifest))
    if shown:
        print(_speed(shown[0], args.workers))
    return 0


def _line(progress: Progress) -> str:
    parts = [
        f"{progress.text_bytes / 1e6:,.1f} MB",
        f"{progress.shards} shards",
        f"{progress.new_text_bytes / progress.seconds / 1e6:.2f} MB/s",
        f"{progress.new_tokens / progress.seconds:,.0f} tokens/s",
    ]
    if progress.fraction is not None:
        parts.insert(0, f"{progress.fraction:6.1%}")
    if progress.seconds_left is not None:
        parts.append(f"ETA {clock(progress.seconds_left)}")
    return "prepare: " + "  ".join(parts)


def _checked(num_bytes: int, total: int) -> str:
    return f"checking the finished corpus: {num_bytes / total:6.1%} of {total / 1e6:,.1f} MB"


def _table(manifest: Manifest) -> str:
    def row(name: str, show: str, *values: float) -> str:
        return f"{name:12}" + "".join(f"{format(value, show):>18}" for value in values)

    def counts(split: SplitInfo) -> list[tuple[str, int]]:
        return [
            ("documents", split.num_documents),
            ("sentences", split.num_sentences),
            ("tokens", split.num_tokens),
            ("records", split.num_records),
            ("shards", len(split.shards)),
        ]

    lines = [f"{'':12}{'train':>18}{'held out':>18}"]
    for (name, train), (_, heldout) in zip(
        counts(manifest.train), counts(manifest.heldout), strict=True
    ):
        lines.append(row(name, ",", train, heldout))
    lines.append(row("fill rate", ".4f", manifest.train.fill_rate, manifest.heldout.fill_rate))
    shares = (manifest.train.unknown_share, manifest.heldout.unknown_share)
    shown = ["not counted" if share is None else f"{share:.2%}" for share in shares]
    lines.append(f"{'unknown':12}" + "".join(f"{share:>18}" for share in shown))
    held_out = any(SPLIT_KEY in source for source in manifest.sources)
    left_out = {
        "exact duplicates removed": manifest.duplicates_removed,
        **({"left out of training, being held out": manifest.heldout_repeats} if held_out else {}),
        "documents without a token": manifest.empty_documents,
        "unusable lines skipped": manifest.bad_lines_skipped,
        "inputs without a document skipped": manifest.empty_files_skipped,
        "long documents read as several": manifest.documents_split,
    }
    lines += [f"{what}: {count:,}" for what, count in left_out.items()]
    return "\n".join(lines)


def _speed(progress: Progress, num_workers: int) -> str:
    if not progress.new_shards:
        return f"all {progress.shards} shards were there"
    kept = progress.shards - progress.new_shards
    return (
        f"{progress.new_text_bytes / 1e6:,.1f} MB of text in {progress.seconds:.1f} s: "
        f"{progress.new_text_bytes / progress.seconds / 1e6:.2f} MB/s, "
        f"{progress.new_tokens / progress.seconds:,.0f} tokens/s with {num_workers} workers of "
        f"at most {progress.peak_worker_memory / 2**20:.0f} MiB"
        + (f"; {kept} shards were there" if kept else "")
    )


def add_demo_corpus_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `demo-corpus`."""
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="a .jsonl file")


def demo_corpus(args: argparse.Namespace) -> int:
    """Write the English that comes with Python as a corpus, one JSON object a line.

        bert-jax demo-corpus --output python_docs.jsonl

    The language reference and the docstrings of the standard library: 2.3 MB that need no download.
    """
    if args.output.suffix != ".jsonl":
        raise ValueError(f"--output is {args.output}; expected a name that ends in .jsonl")
    check_outside_corpora(args.output, "--output")
    written = write_python_docs(args.output)
    print(
        f"{args.output}: {written.num_documents} documents, {written.num_bytes / 1e6:.2f} MB of "
        f"text from {platform.python_implementation()} {platform.python_version()}"
    )
    return 0
