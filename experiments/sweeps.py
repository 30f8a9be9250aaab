"""Read the scores of a sweep's runs."""

from __future__ import annotations

from pathlib import Path

from bert_jax.finetuning.sweep_results import RunResult
from bert_jax.runs.bucket_layout import RUNS_NAME
from bert_jax.training.metrics_log import LOG_NAME, read_metrics


def after_epochs(run: RunResult, output: Path) -> list[dict[str, float]]:
    """Return the scores from every evaluation in a run that did not diverge.

    A sweep itself reports only the best evaluation of each run, but comparing best evaluations
    favors models that do not learn.

    Args:
      run: the run.
      output: the directory of the run's sweep.
    """
    entries = read_metrics(output / RUNS_NAME / run.hyperparameters.name / LOG_NAME)
    return [
        {name: score for name, score in entry.items() if name in run.scores}
        for entry in entries
        if entry["kind"] == "evaluation"
    ]


def at_the_end(run: RunResult, output: Path) -> dict[str, float]:
    """Return a run's scores after its last epoch; `output` is the directory of its sweep."""
    return after_epochs(run, output)[-1]
