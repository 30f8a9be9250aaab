"""Options that the verbs which read raw text share."""

from __future__ import annotations

import argparse

from bert_jax.cli.arguments import free_text
from bert_jax.corpus.shards import available_cores
from bert_jax.text.documents import SourceOptions


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which raw text is read, and how."""
    options = SourceOptions()
    parser.add_argument(
        "--input",
        nargs="+",
        action="extend",
        required=True,
        metavar="PATH",
        help="files, directories, patterns or tfds:NAME/CONFIG:SPLIT (default of SPLIT: train)",
    )
    parser.add_argument(
        "--text-field",
        type=free_text,
        default=options.text_field,
        metavar="NAME",
        help="JSON field, Parquet column or TFDS feature with the text (default: %(default)s)",
    )
    parser.add_argument(
        "--encoding",
        default=options.encoding,
        metavar="NAME",
        help="of plain text and JSON Lines; the others are UTF-8 (default: %(default)s)",
    )
    parser.add_argument(
        "--on-bad-line",
        choices=("error", "skip"),
        default=options.on_bad_line,
        help="whether an unusable line or empty file is an error, or is left out and counted "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--tfds-data-dir",
        metavar="DIR",
        help="where TFDS keeps its data sets (default: TFDS_DATA_DIR, else ~/tensorflow_datasets)",
    )


def source_options(args: argparse.Namespace) -> SourceOptions:
    """The options that `add_source_arguments` declared."""
    return SourceOptions(
        text_field=args.text_field,
        encoding=args.encoding,
        on_bad_line=args.on_bad_line,
        tfds_data_dir=args.tfds_data_dir,
    )


def add_tokenizer_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the tokenizer, and its case, which a bare vocab.txt does not say."""
    parser.add_argument(
        "--tokenizer",
        required=True,
        metavar="FILE_OR_DIR",
        help="vocab.txt, vocab.json (beside its merges.txt), spiece.model, tokenizer.json, or a "
        "directory that holds one",
    )
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--lowercase",
        dest="lowercase",
        action="store_const",
        const=True,
        help="the vocabulary is uncased (default: what its tokenizer_config.json or tokenizer.json "
        "says; of a bare vocab.txt, what it looks like)",
    )
    case.add_argument(
        "--cased", dest="lowercase", action="store_const", const=False, help="it is cased"
    )


def add_workers_argument(parser: argparse.ArgumentParser) -> None:
    """Declare how many processes share the work."""
    parser.add_argument(
        "--workers",
        type=_at_least_one,
        default=available_cores(),
        metavar="N",
        help="processes (default: %(default)s, every core)",
    )


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes. Give at least 1")
    return int(text)
