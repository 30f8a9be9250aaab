"""Check that every run of a sweep can be trained, and create the sweep."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

from bert_jax.finetuning.hyperparameters import Grid, Hyperparameters
from bert_jax.finetuning.run import FinetuneRun
from bert_jax.finetuning.run_description import num_parameters, num_trainable
from bert_jax.finetuning.scoring import LOSS
from bert_jax.finetuning.sweep_directory import Keep
from bert_jax.finetuning.sweep_place import SweepPlace
from bert_jax.finetuning.sweep_results import VariantFacts
from bert_jax.finetuning.sweep_run import OnProgress, Sweep
from bert_jax.finetuning.variants import Variant
from bert_jax.training.learning_rates import make_schedule


@contextmanager
def naming(variant: Variant) -> Iterator[None]:
    """Add the variant to the message of a `ValueError`, unless the message already mentions it."""
    try:
        yield
    except ValueError as error:
        if not variant or str(variant) in str(error):
            raise
        raise ValueError(f"{error}\n(in the runs with {variant})") from error


def check_runs(run: FinetuneRun, runs: Iterable[Hyperparameters]) -> FinetuneRun:
    """Check every run of a variant, so that none is rejected later.

    Args:
      run: the opened variant.
      runs: the hyperparameters of the variant's runs.

    Returns:
      `run`, with its initial parameters in memory.

    Raises:
      ValueError: a batch cannot be split over the devices, a run does not fit in memory, or the
        warm-up is longer than a run.
    """
    run = dataclasses.replace(run, source=run.source.hold())
    for hyperparameters in runs:
        checked = run.with_hyperparameters(run.place, hyperparameters)
        make_schedule(checked.optimizer, checked.total_steps)
        checked.check_memory()
    return run


def make_sweep(
    opened: Mapping[Variant, FinetuneRun],
    place: SweepPlace,
    grid: Grid,
    keep: Keep,
    command: str,
    on_progress: OnProgress,
) -> Sweep:
    """Return a sweep over opened variants.

    Args:
      opened: the variants in the grid.
      place: the sweep's directory.
      grid: the grid of variants, hyperparameters and seeds.
      keep: the runs whose parameters stay on disk.
      command: the command that repeats the sweep.
      on_progress: called during a run with a line that describes its progress.

    Raises:
      ValueError: the variants cannot be compared by the same metric.
    """
    metric = _metric(opened.values())
    data = opened[grid.variants[0]].data
    # A loss has no chance level, so the task's own metric identifies degenerate runs.
    chance_metric = data.best_metric if metric.endswith(LOSS) else metric
    facts = {variant: _facts(variant, run, chance_metric) for variant, run in opened.items()}
    return Sweep(
        *(opened, facts, place, grid, keep, command, metric, chance_metric),
        on_progress=on_progress,
    )


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
        f"a sweep compares all runs by the same metric, but these runs use {', '.join(metrics)}. "
        "Run a sweep for each task, and write a joint report with `bert-jax sweep --report-only`."
    )
