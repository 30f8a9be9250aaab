"""What experiments take from a sweep's runs."""

from __future__ import annotations

from pathlib import Path

from bert_jax.cli.sweep_directory import RUNS_NAME
from bert_jax.finetuning.sweep import RunResult
from bert_jax.training.metrics_log import read_metrics
from bert_jax.training.reporting import LOG_NAME


def at_the_end(run: RunResult, output: Path) -> dict[str, float]:
    """The scores after the last epoch of a run that did not diverge, of the sweep in `output`.

    The best of all epochs would flatter what learns nothing.
    """
    entries = read_metrics(output / RUNS_NAME / run.dials.name / LOG_NAME)
    last = [entry for entry in entries if entry["kind"] == "evaluation"][-1]
    return {name: score for name, score in last.items() if name in run.scores}
