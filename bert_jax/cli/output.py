"""Print the reports of runs and the results of commands to the console."""

import argparse
import sys

from bert_jax.result_files import SavedResult, write_plot
from bert_jax.terminal import ProgressLine, use_utf8, write_line
from bert_jax.training.reports import Message, Report


def console_report(report: Report) -> None:
    """Print messages to standard output, and all other reports to standard error."""
    write_line(str(report), sys.stdout if isinstance(report, Message) else sys.stderr)


def report_result(result: SavedResult, args: argparse.Namespace, line: ProgressLine) -> int:
    """Print a result after its progress line, and write the requested files."""
    line.end()
    use_utf8(sys.stdout)
    print(result)
    if args.plot:
        write_plot(result, args.plot)
    if args.output:
        result.save(args.output)
    return 0
