"""Write the English that comes with Python as a corpus, one JSON object a line.

    bert-jax demo-corpus --output python_docs.jsonl

The language reference and the docstrings of the standard library: 2.3 MB that need no download.
"""

from __future__ import annotations

import argparse
import platform
from pathlib import Path

from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.text.python_docs import write_python_docs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `demo-corpus`."""
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="a .jsonl file")


def run(args: argparse.Namespace) -> int:
    """Write the corpus."""
    if args.output.suffix != ".jsonl":
        raise ValueError(f"--output is {args.output}; expected a name that ends in .jsonl")
    check_outside_corpora(args.output, "--output")
    written = write_python_docs(args.output)
    print(
        f"{args.output}: {written.num_documents} documents, {written.num_bytes / 1e6:.2f} MB of "
        f"text from {platform.python_implementation()} {platform.python_version()}"
    )
    return 0
