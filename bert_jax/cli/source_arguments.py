"""Declare options that are shared by the verbs that read raw text."""

from bert_jax.argument_parser import ArgumentParser, at_least
from bert_jax.field_options import add_field_options
from bert_jax.processes import available_cores
from bert_jax.text.documents import SourceOptions


def add_source_arguments(parser: ArgumentParser) -> None:
    """Declare the options for the raw text and its format."""
    parser.add_list(
        "--input",
        "PATH",
        "files, directories, patterns, tfds:NAME/CONFIG:SPLIT or hf:OWNER/NAME/CONFIG:SPLIT (SPLIT "
        "defaults to train)",
        required=True,
    )
    add_field_options(parser, SourceOptions)


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
    """Declare `--cased`, and the option named `lowercase`, which has the opposite effect."""
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
