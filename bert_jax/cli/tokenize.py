"""Show how a model's tokenizer splits a text: tokens, ids, words and characters.

bert-jax tokenize runs/mine "I love my pet Python"
"""

from __future__ import annotations

import argparse
import sys

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_text_arguments
from bert_jax.labeled_data.tokenized_text import tokenize
from bert_jax.terminal import shows_color, use_utf8


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `tokenize`."""
    parser.add_argument(
        "tokenizer", metavar="MODEL", help="work directory, or directory with a tokenizer"
    )
    add_text_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the tokens."""
    tokens = tokenize(args.tokenizer, args.text, args.second, args.max_length)
    use_utf8(sys.stdout)
    print("\n".join(tokens.lines(color=shows_color(sys.stdout))))
    return 0
