"""Test that the metrics of a split count every example once, at any batch size."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.tasks.task import Metric, Metrics, weighted_mean
from bert_jax.training.evaluation import MetricTotals, evaluate


def step(params: dict, batch: dict) -> Metrics:
    weights = jnp.asarray(batch["weights"])
    return {
        "mlm_loss": weighted_mean(jnp.asarray(batch["losses"]), weights),
        "never_counted": Metric(jnp.zeros(()), jnp.zeros(())),
        "tokens": Metric(jnp.sum(weights), jnp.ones(())),
    }


@pytest.mark.parametrize("size", [1, 3, 4, 10])
def test_ragged_batches_are_weighted_by_their_rows(size: int) -> None:
    rng = np.random.default_rng(0)
    losses, weights = rng.random(10, np.float32), rng.integers(0, 5, 10).astype(np.float32)
    batches = []
    for start in range(0, 10, size):
        padding = (0, max(0, start + size - 10))
        batches.append(
            {
                "losses": np.pad(losses[start : start + size], padding),
                "weights": np.pad(weights[start : start + size], padding),
            }
        )
    expected = float((losses.astype(np.float64) * weights).sum() / weights.sum())
    metrics = evaluate(step, {}, batches)
    assert metrics == {
        "mlm_loss": pytest.approx(expected, rel=1e-6),
        "mlm_perplexity": pytest.approx(math.exp(expected), rel=1e-6),
    }


def test_metrics_are_read_while_the_next_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    events = []
    add = MetricTotals.add

    def reading(totals: MetricTotals, metrics: Metrics) -> None:
        events.append("read")
        add(totals, metrics)

    def stepping(params: dict, batch: dict) -> Metrics:
        events.append("step")
        return step(params, batch)

    monkeypatch.setattr(MetricTotals, "add", reading)
    batch = {"losses": np.ones(1, np.float32), "weights": np.ones(1, np.float32)}
    evaluate(stepping, {}, 3 * [batch])
    assert events == ["step", "step", "read", "step", "read", "read"]


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(ValueError, match="the held-out split is empty, so there is nothing"):
        evaluate(step, {}, [])


def test_totals_are_kept_in_double_precision() -> None:
    totals = MetricTotals()
    totals.add({"tokens": Metric(np.float32(2**24), np.float32(1))})
    for _ in range(3):
        totals.add({"tokens": Metric(np.float32(1), np.float32(1))})
    assert totals.sums() == {"tokens": 2**24 + 3}
    assert totals.means() == {"tokens": (2**24 + 3) / 4}


def test_a_very_large_loss_has_a_finite_perplexity() -> None:
    batch = {"losses": np.array([1e4], np.float32), "weights": np.ones(1, np.float32)}
    assert math.isfinite(evaluate(step, {}, [batch])["mlm_perplexity"])
