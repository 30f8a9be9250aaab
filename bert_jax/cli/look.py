"""Show what happens inside a model when it reads a text, as one page for a browser.

    bert-jax look runs/mine "I love my pet Python" "Python is a language" --output page.html

The page shows the attention of every head, and depending on the model's head also the guesses for
[MASK] at every layer, the tags, the answer to a question (the first text) in a passage (the
second), or the contribution of every word to a classification. It loads nothing from the network.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.arguments import add_text_arguments, add_work_dir_argument
from bert_jax.corpus.workspace import check_outside_corpora
from bert_jax.interpretability.look import check_page_path, look
from bert_jax.runs.runtime import enable_compilation_cache


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `look`."""
    add_work_dir_argument(parser)
    add_text_arguments(parser)
    parser.add_option("--output", "FILE", "HTML file to write", required=True)


def run(args: argparse.Namespace) -> int:
    """Write the page, and print what it leaves out."""
    output = Path(args.output)
    check_page_path(output)
    check_outside_corpora(output, "--output")
    enable_compilation_cache()
    page = look(args.work_dir, args.text, args.second, max_length=args.max_length)
    page.save(output)
    for note in page.notes:
        print(note)
    print(f"{output}: {len(page.html.encode()):,} bytes. Open it in a browser.")
    return 0
