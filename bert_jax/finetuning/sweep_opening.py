"""Open every variant of a sweep, and check that all of its runs are possible."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from bert_jax.finetuning.config import FinetuneConfig
from bert_jax.finetuning.hyperparameters import Grid
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.run_description import num_parameters, num_trainable
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.sweep_directory import Keep
from bert_jax.finetuning.sweep_results import VariantFacts
from bert_jax.finetuning.sweep_run import Sweep
from bert_jax.finetuning.variants import Variant
from bert_jax.training.optimizer import make_schedule
from bert_jax.training.sharding import make_mesh


def open_sweep(
    configs: Mapping[Variant, FinetuneConfig], output: Path, grid: Grid, keep: Keep, command: str
) -> Sweep:
    """Open every variant and check every combination, so that no run is rejected later.

    Args:
      configs: the config of each variant in the grid.
      output: the sweep's directory.
      grid: the grid of variants, hyperparameters and seeds.
      keep: the runs whose parameters stay on disk.
      command: the command that repeats the sweep.

    Raises:
      ValueError: a model or a file does not fit its config, a batch cannot be split over the
        devices, a run does not fit in memory, the warm-up is longer than a run, or the variants
        cannot be compared by the same metric.
    """
    opened: dict[Variant, FinetuneRun] = {}
    for variant, config in configs.items():
        try:
            opened[variant] = _open(config, output, grid, variant, list(opened.values()))
        except ValueError as error:
            if not variant or str(variant) in str(error):
                raise
            raise ValueError(f"{error}\n(in the runs with {variant})") from error
    metric = _metric(opened.values())
    data = opened[grid.variants[0]].data
    # A loss has no chance level, so the task's own metric identifies degenerate runs.
    chance_metric = data.best_metric if metric.endswith(LOSS) else metric
    facts = {variant: _facts(variant, run, chance_metric) for variant, run in opened.items()}
    return Sweep(opened, facts, output, grid, keep, command, metric, chance_metric)


def _open(
    config: FinetuneConfig,
    output: Path,
    grid: Grid,
    variant: Variant,
    others: Sequence[FinetuneRun],
) -> FinetuneRun:
    """Open a variant, with its parameters in memory, and check its runs."""
    if not config.evaluation_batch_size:  # the same for all runs, so that it compiles once
        largest = 4 * (max(grid.batch_sizes) // config.accumulation_steps)
        config = dataclasses.replace(config, evaluation_batch_size=largest)
    first = grid.runs[0].batch_size
    config = dataclasses.replace(config, work_dir=str(output), batch_size=first)
    run = FinetuneRun.open(config, make_mesh(config.mesh), others)
    run = dataclasses.replace(run, source=run.source.hold())
    for hyperparameters in (each for each in grid.runs if each.variant == variant):
        checked = run.with_hyperparameters(output, hyperparameters)
        make_schedule(checked.optimizer, checked.total_steps)
        checked.check_memory()
    return run


def _facts(variant: Variant, run: FinetuneRun, chance_metric: str) -> VariantFacts:
    assert run.data.train is not None
    return VariantFacts(
        variant,
        num_parameters=num_parameters(run),
        num_trainable=num_trainable(run),
        num_examples=len(run.data.train),
        chance=run.data.chance(chance_metric),
    )


def _metric(runs: Collection[FinetuneRun]) -> str:
    """Return the metric that all runs are compared by.

    If the runs select their checkpoints by different metrics, this is the task's primary metric.

    Raises:
      ValueError: the runs' tasks have different primary metrics.
    """
    for metrics in (
        dict.fromkeys(run.best_metric for run in runs),
        dict.fromkeys(run.data.best_metric for run in runs),
    ):
        if len(metrics) == 1:
            return next(iter(metrics))
    raise ValueError(
        f"a sweep compares all runs by the same metric, but theirs are {', '.join(metrics)}. Run a "
        "sweep for each task, and write a joint report with --report-only."
    )
