"""Options of every verb that reads raw text or a bare vocabulary."""

from __future__ import annotations

import argparse

from bert_jax.data.documents import SourceOptions

INPUT_HELP = "files, directories, patterns or tfds:NAME/CONFIG:SPLIT (the split train if not given)"


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare how raw text is read."""
    options = SourceOptions()
    parser.add_argument(
        "--text-field",
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


def add_case_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what a bare vocab.txt does not say, and what overrides other files."""
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
