"""Print a run's reports to the console."""

from __future__ import annotations

import sys
from typing import assert_never

from bert_jax.terminal import write_line
from bert_jax.training.reports import EvaluationReport, Message, Report, TrainReport


def console_report(report: Report) -> None:
    """Print messages to standard output, and training progress and evaluations to stderr."""
    match report:
        case Message():
            write_line(str(report), sys.stdout)
        case TrainReport() | EvaluationReport():
            write_line(str(report), sys.stderr)
        case _:
            assert_never(report)
