"""Declare options that are shared by the verbs that read raw text."""

from __future__ import annotations

import argparse

from bert_jax.argument_parser import ArgumentParser, at_least, free_text
from bert_jax.processes import available_cores
from bert_jax.text.documents import SourceOptions


def add_source_arguments(parser: ArgumentParser) -> None:
    """Declare the options for the raw text and its format."""
    options = SourceOptions()
    parser.add_list(
        "--input",
        "PATH",
        "files, directories, patterns or tfds:NAME/CONFIG:SPLIT (SPLIT defaults to train)",
        required=True,
    )
    parser.add_option(
        "--text-field",
        "NAME",
        "JSON field, Parquet column or TFDS feature that contains the text",
        kind=free_text,
        default=options.text_field,
    )
    parser.add_option(
        "--encoding",
        "NAME",
        "encoding of plain text and JSON Lines; other formats are always UTF-8",
        default=options.encoding,
    )
    parser.add_choice(
        "--on-bad-line",
        ("error", "skip"),
        "how to handle unusable lines and empty files: stop with an error, or skip and count them",
        default=options.on_bad_line,
    )
    parser.add_option(
        "--tfds-data-dir",
        "DIR",
        "directory that contains TFDS data sets (default: TFDS_DATA_DIR, else "
        "~/tensorflow_datasets)",
    )


def source_options(args: argparse.Namespace) -> SourceOptions:
    """Collect the options that `add_source_arguments` declares."""
    return SourceOptions(
        text_field=args.text_field,
        encoding=args.encoding,
        on_bad_line=args.on_bad_line,
        tfds_data_dir=args.tfds_data_dir,
    )


def add_tokenizer_arguments(parser: ArgumentParser) -> None:
    """Declare the options for the tokenizer and its case, which a vocab.txt does not specify."""
    parser.add_option(
        "--tokenizer",
        "FILE_OR_DIR",
        "vocab.txt, vocab.json (with merges.txt in its directory), spiece.model, tokenizer.json, "
        "or a directory that contains one",
        required=True,
    )
    add_case_arguments(
        parser,
        lowercase="--lowercase",
        lowercase_help="uncased vocabulary (default: as specified in its tokenizer_config.json or "
        "tokenizer.json; for a plain vocab.txt, as its entries suggest)",
        cased_help="cased vocabulary",
    )


def add_case_arguments(
    parser: ArgumentParser, *, lowercase: str, lowercase_help: str, cased_help: str
) -> None:
    """Declare `--cased` and its opposite, the option that `lowercase` names."""
    case = parser.add_mutually_exclusive_group()
    for name, value, text in ((lowercase, True, lowercase_help), ("--cased", False, cased_help)):
        case.add_argument(name, dest="lowercase", action="store_const", const=value, help=text)


def add_workers_argument(parser: ArgumentParser) -> None:
    """Declare `--workers`, the number of processes that share the work."""
    parser.add_argument(
        "--workers",
        type=at_least(1),
        default=available_cores(),
        metavar="N",
        help="number of processes (default: %(default)s, the number of cores)",
    )
