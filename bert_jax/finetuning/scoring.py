"""Compute a model's logits and loss for whole sets of examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import jax
import numpy as np
from jax.sharding import Mesh

from bert_jax.finetuning.task_data import ExampleSet, Logits, TaskData
from bert_jax.labeled_data.feature_batches import (
    MULTIPLE,
    TOKENS_IN_A_CACHE,
    ByLength,
    FeatureBatches,
    InOrder,
    choose_lengths,
    rows_by_length,
)
from bert_jax.labeled_data.features import Features
from bert_jax.models.parameters import Parameters
from bert_jax.pipeline.loader import Loader
from bert_jax.tasks.finetuning import INPUTS, ClassifierTask
from bert_jax.tasks.task import Metrics
from bert_jax.training.evaluation import MetricTotals, to_the_end
from bert_jax.training.sharding import batch_extent, local_rows, to_global
from bert_jax.training.step import MetricsStep, PredictionStep

LOSS = "loss"


@dataclass(frozen=True)
class Scorer:
    """Computes a model's logits and loss for sets of examples.

    Attributes:
      mesh: the device mesh.
      task: the model and its loss.
      step: the step that computes logits.
      metrics_step: the step that computes the loss from logits.
      batch_size: the maximum number of rows in a batch, over all processes; on a CPU, batches of
        long rows are smaller, which is faster.
      row_lengths: the lengths that rows are padded to; the last one is extended if a set has longer
        examples.
    """

    mesh: Mesh
    task: ClassifierTask
    step: PredictionStep
    metrics_step: MetricsStep
    batch_size: int
    row_lengths: Sequence[int]

    def answers(
        self,
        params: Parameters,
        examples: ExampleSet,
        name: str,
        after_batch: Callable[[], None] = to_the_end,
    ) -> tuple[Logits, dict[str, float]]:
        """Return the logits and the loss for the set called `name`; see `logits`.

        Raises:
          ValueError: some logits are NaN or infinite.
        """
        logits, loss = self.logits(params, examples.features, after_batch)
        if not np.isfinite(logits).all():
            raise ValueError(
                f"{name}: the model's scores are NaN or infinite ({self.task.compute.dtype}), so "
                "its predictions are meaningless. Either its parameters are damaged, or the "
                "dtype's range is too small for them: try --config.compute.dtype=float32"
            )
        return logits, loss

    def logits(
        self,
        params: Parameters,
        features: Features,
        after_batch: Callable[[], None] = to_the_end,
    ) -> tuple[Logits, dict[str, float]]:
        """Return logits [examples, ...] or [tokens, ...], and the loss if there are targets.

        Every example counts exactly once, and padding in the batches does not count. All processes
        return the same result.

        Args:
          params: the model's parameters.
          features: the examples.
          after_batch: see `bert_jax.training.evaluation.evaluate`.
        """
        lengths = self._lengths(features)
        plan = InOrder(features.lengths, lengths, self._batch_sizes(features, lengths))
        rows = cache(partial(local_rows, self.mesh))
        totals, gathered = MetricTotals(), _Gathered(features)
        pending: tuple[int, jax.Array, Metrics] | None = None
        with Loader(FeatureBatches(features, plan, local_rows=rows)) as batches:
            for number, batch in enumerate(batches):
                size = len(plan.planned_batch(number).examples)
                placed = to_global(batch, self.mesh, rows(size), size)
                logits = self.step(params, {name: placed[name] for name in INPUTS})
                metrics = self.metrics_step(logits, placed) if features.has_targets else {}
                # Fetch results one batch late, so that the next batch runs while the host waits.
                if pending is not None:
                    self._take(pending, plan, gathered, totals)
                pending = number, logits, metrics
                after_batch()
        assert pending is not None
        self._take(pending, plan, gathered, totals)
        means = totals.means()
        terms = self.task.loss_terms.items()
        loss = {LOSS: sum(c * means[name] for name, c in terms)} if features.has_targets else {}
        return gathered.logits, loss

    def _lengths(self, features: Features) -> tuple[int, ...]:
        longest = int(features.lengths.max())
        if longest <= max(self.row_lengths):
            return tuple(self.row_lengths)
        positions = self.task.config.encoder.max_positions
        return (*self.row_lengths[:-1], min(-(-longest // MULTIPLE) * MULTIPLE, positions))

    def _batch_sizes(self, features: Features, row_lengths: Sequence[int]) -> tuple[int, ...]:
        devices, multiple = self.mesh.devices.flat, batch_extent(self.mesh)
        machines = len({device.process_index for device in devices})
        tokens = machines * TOKENS_IN_A_CACHE // features.sequences_per_example
        most = tokens if devices[0].platform == "cpu" else None
        return rows_by_length(row_lengths, self.batch_size, most, multiple)

    def _take(
        self,
        batch: tuple[int, jax.Array, Metrics],
        plan: InOrder,
        gathered: _Gathered,
        totals: MetricTotals,
    ) -> None:
        number, logits, metrics = batch
        gathered.put(plan.planned_batch(number).examples, np.asarray(logits))
        totals.add(metrics)


class _Gathered:
    """The logits for all examples, filled in batch by batch."""

    def __init__(self, features: Features) -> None:
        self._features = features
        self.logits: Logits = np.zeros(0, np.float32)

    def put(self, examples: np.ndarray, logits: Logits) -> None:
        per_token = logits.ndim == 3
        if not len(self.logits):
            sequences = self._features.sequences
            size = len(sequences.token_ids) if per_token else len(self._features)
            self.logits = np.full((size, *logits.shape[1 + per_token :]), np.nan, np.float32)
        for row, example in zip(logits, examples.tolist(), strict=True):
            if example < 0:
                continue
            if per_token:
                start, end = self._features.sequences.starts[example : example + 2]
                self.logits[start:end] = row[: end - start]
            else:
                self.logits[example] = row


@dataclass(frozen=True)
class ValidationMetrics:
    """Computes the scores on all of a task's validation sets, for `Phase.evaluate`."""

    scorer: Scorer
    data: TaskData

    def __call__(self, params: Parameters, after_batch: Callable[[], None]) -> dict[str, float]:
        """Return each set's metrics and loss, keyed by the names from `TaskData.metric_of`."""
        results: dict[str, float] = {}
        for name, examples in self.data.validation.items():
            logits, loss = self.scorer.logits(params, examples.features, after_batch)
            # Training has diverged.
            if not np.isfinite(logits).all():
                return {self.data.metric_of(name, LOSS): math.nan}
            scores = examples.scores(logits) | loss
            results |= {self.data.metric_of(name, metric): s for metric, s in scores.items()}
        return results


def row_lengths(train: Features, max_shapes: int, max_positions: int) -> tuple[int, ...]:
    """Return at most `max_shapes` lengths to pad rows to.

    Each length is a multiple of 8, capped at the model's number of positions. The lengths depend
    only on the training examples, since training must not depend on the evaluation sets.
    """
    lengths = choose_lengths(train.lengths, max_shapes)
    return tuple(min(length, max_positions) for length in lengths)


def padding(features: Features, plan: ByLength) -> float:
    """Return the fraction of padding in the first epoch's batches, including all-padding rows."""
    batches = map(plan.planned_batch, range(plan.steps_per_epoch))
    padded = sum(len(examples) * length for examples, length in batches)
    return 1.0 - len(features.sequences.token_ids) / (padded * features.sequences_per_example)
