"""Compare the curves and the configs of two to ten runs.

    bert-jax compare-runs runs/one runs/two runs/three --page comparison.html

The command prints the last value of each metric, on held-out data if the run has been evaluated,
and the config keys that differ. Runs may have different lengths, and may still be in progress.
"""

import argparse
import sys

from bert_jax.argument_parser import ArgumentParser
from bert_jax.cli.output import report_result
from bert_jax.runs.comparison import compare_runs
from bert_jax.terminal import ProgressLine


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `compare-runs`."""
    parser.add_argument("runs", nargs="+", metavar="RUN", help="work directory of a run")
    parser.add_output_file("--page", "HTML page with the tables and the curves")
    parser.add_output_file("--plot", "PNG image of the curves")
    parser.add_output_file("--output", "JSON file for the tables")


def run(args: argparse.Namespace) -> int:
    """Print the tables, and write the files."""
    comparison = compare_runs(args.runs)
    if args.page:
        comparison.save_page(args.page)
    return report_result(comparison, args, ProgressLine(sys.stderr))
