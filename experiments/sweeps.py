"""What experiments take from a sweep's runs."""

from __future__ import annotations

from pathlib import Path

from bert_jax.finetuning.sweep_directory import RUNS_NAME
from bert_jax.finetuning.sweep_results import RunResult
from bert_jax.training.metrics_log import LOG_NAME, read_metrics


def after_epochs(run: RunResult, output: Path) -> list[dict[str, float]]:
    """The scores of every evaluation of a run of the sweep in `output` that did not diverge.

    A run's own best, which a sweep tells, would flatter what learns nothing.
    """
    entries = read_metrics(output / RUNS_NAME / run.hyperparameters.name / LOG_NAME)
    return [
        {name: score for name, score in entry.items() if name in run.scores}
        for entry in entries
        if entry["kind"] == "evaluation"
    ]


def at_the_end(run: RunResult, output: Path) -> dict[str, float]:
    """The scores after the last epoch of a run that did not diverge, of the sweep in `output`."""
    return after_epochs(run, output)[-1]
