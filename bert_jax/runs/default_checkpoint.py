"""Choose the checkpoint of a work directory that is used by default."""

from __future__ import annotations

from pathlib import Path

from bert_jax.runs.work_dir import CHECKPOINTS_NAME, Comparison, named_step, read_comparison
from bert_jax.training.checkpoint_files import newest_step, steps_in
from bert_jax.training.distributed import agreed
from bert_jax.training.metrics_log import LOG_NAME, read_metrics


def default_checkpoint_step(work_dir: Path) -> int:
    """Return the step of the best checkpoint for a fine-tuning run, or of the newest one otherwise.

    While a fine-tuning run is in progress, the result is its best checkpoint so far.

    Raises:
      ValueError: the directory is not a work directory, or has no complete checkpoint.
    """
    best = named_step(work_dir)
    if best is not None:
        return best
    newest = newest_step(work_dir / CHECKPOINTS_NAME)
    comparison = read_comparison(work_dir)
    best = None if comparison is None else best_so_far(work_dir, comparison)
    return agreed(newest if best is None else best)


def best_so_far(work_dir: Path, comparison: Comparison) -> int | None:
    """Return the step of the best existing checkpoint according to the log.

    If several checkpoints are equally good, the latest one is returned, as in the run itself. The
    result is None if the log contains no value of the metric for any existing checkpoint.
    """
    log, steps = work_dir / LOG_NAME, steps_in(work_dir / CHECKPOINTS_NAME)
    entries = read_metrics(log) if log.is_file() else []
    sign = -1.0 if comparison.lower_is_better else 1.0
    values = {
        int(entry["step"]): sign * entry[comparison.metric]
        for entry in entries
        if entry["kind"] == "evaluation"
        and entry["step"] in steps
        and entry.get(comparison.metric) is not None
    }
    return max(values, key=lambda step: (values[step], step), default=None)
