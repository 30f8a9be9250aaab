"""Exact metrics over a whole split."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.models.parameters import Parameters
from bert_jax.tasks.protocol import Metrics
from bert_jax.training.sharding import local_rows, to_global
from bert_jax.training.step import EvaluationStep


class MetricTotals:
    """Adds up (sum, weight) pairs on the host in float64."""

    def __init__(self) -> None:
        self._totals: dict[str, tuple[float, float]] = {}

    def add(self, metrics: Metrics) -> None:
        """Adds the metrics of a batch, on a device or on the host."""
        for name, metric in jax.device_get(metrics).items():
            total, weight = self._totals.get(name, (0.0, 0.0))
            self._totals[name] = (total + float(metric.sum), weight + float(metric.weight))

    def means(self) -> dict[str, float]:
        """sum / weight by name; a metric nothing was counted for is left out."""
        return {name: s / w for name, (s, w) in self._totals.items() if w > 0}

    def sums(self) -> dict[str, float]:
        """The sums by name."""
        return {name: total for name, (total, _) in self._totals.items()}


def to_the_end() -> None:
    """What is called after a batch of what nothing ends."""


def evaluate(
    step: Callable[[Parameters, Mapping[str, jax.Array]], Metrics],
    params: Parameters,
    batches: Iterable[Mapping[str, jax.Array]],
    after_batch: Callable[[], None] = to_the_end,
) -> dict[str, float]:
    """Means over all `batches`, each example counted once whatever the batch size.

    after_batch: called after every batch; what it raises ends the evaluation.
    Adds `mlm_perplexity`, the exponential of `mlm_loss`, where there is such a metric.

    Raises:
      ValueError: there are no batches.
    """
    totals = MetricTotals()
    pending: Metrics | None = None
    for batch in batches:
        metrics = step(params, batch)
        # Read one batch late: the next is under way before the host waits for this one.
        if pending is not None:
            totals.add(pending)
        pending = metrics
        after_batch()
    if pending is None:
        raise ValueError("nothing to evaluate on: the held-out split is empty")
    totals.add(pending)
    means = totals.means()
    means.pop("tokens", None)
    if "mlm_loss" in means:
        # exp overflows a float above 709 nats; such a model predicts nothing either way.
        means["mlm_perplexity"] = math.exp(min(means["mlm_loss"], 700.0))
    return means


@dataclass(frozen=True)
class HeldOutMetrics:
    """Parameters to `evaluate`'s means over a held-out split, for `Phase.evaluate`.

    batches: this process's rows of each batch of one pass. batch_size: rows over all processes.
    """

    mesh: Mesh
    step: EvaluationStep
    batch_size: int
    batches: Callable[[], Iterable[Mapping[str, np.ndarray]]]

    def __call__(self, params: Parameters, after_batch: Callable[[], None]) -> dict[str, float]:
        """Runs over the split once, as `evaluate`."""
        rows = local_rows(self.mesh, self.batch_size)
        batches = (to_global(b, self.mesh, rows, self.batch_size) for b in self.batches())
        return evaluate(self.step, params, batches, after_batch)
