"""Options of every verb that reads raw text or a bare vocabulary."""

from __future__ import annotations

import argparse

from bert_jax.data.documents import SourceOptions


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how raw text is read."""
    options = SourceOptions()
    parser.add_argument(
        "--text-field",
        default=options.text_field,
        metavar="NAME",
        help="JSON field, Parquet column or TFDS feature with the text (default: %(default)s)",
    )
    parser.add_argument("--encoding", default=options.encoding, help="default: %(default)s")
    parser.add_argument(
        "--on-bad-line",
        choices=("error", "skip"),
        default=options.on_bad_line,
        help="whether an unusable line ends the preparation or is left out and counted",
    )
    parser.add_argument(
        "--tfds-data-dir", metavar="DIR", help="where TFDS keeps its data sets, if not by default"
    )


def source_options(args: argparse.Namespace) -> SourceOptions:
    """The options that `add_source_arguments` declared."""
    return SourceOptions(
        text_field=args.text_field,
        encoding=args.encoding,
        on_bad_line=args.on_bad_line,
        tfds_data_dir=args.tfds_data_dir,
    )


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a bare vocab.txt does not say."""
    case = parser.add_mutually_exclusive_group()
    case.add_argument(
        "--lowercase",
        dest="lowercase",
        action="store_const",
        const=True,
        help="the bare vocab.txt is uncased (default: what the vocabulary looks like)",
    )
    case.add_argument(
        "--cased", dest="lowercase", action="store_const", const=False, help="it is cased"
    )
