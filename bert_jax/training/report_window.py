"""Collect the metrics between two reports."""

from __future__ import annotations

import time

import jax

from bert_jax.tasks.protocol import Metrics
from bert_jax.training.divergence import require_finite_metrics
from bert_jax.training.evaluation import MetricTotals


class ReportWindow:
    """The metrics of the steps since the last report; the newest step may still be running."""

    def __init__(self, first_step: int, *, began: float) -> None:
        self.first_step = first_step
        self.last_step = first_step
        self.began = began
        self.collected = began
        self.totals = MetricTotals()
        self.flops = 0.0
        self.stall_seconds = 0.0
        self.excluded_seconds = 0.0
        self.pending: tuple[int, Metrics, float] | None = None

    def dispatched(self, step: int, metrics: Metrics, flops: float) -> None:
        """Keep the metrics of a step that may still be running."""
        assert self.pending is None
        self.pending = (step, metrics, flops)

    def collect(self) -> None:
        """Wait for the pending step, check its metrics and add them."""
        assert self.pending is not None
        step, metrics, flops = self.pending
        self.pending = None
        host = jax.device_get(metrics)
        self.collected = time.perf_counter()
        require_finite_metrics(step, {name: float(metric.sum) for name, metric in host.items()})
        self.totals.add(host)
        self.flops += flops
        self.last_step = step
