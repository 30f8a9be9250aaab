"""Test when early stopping decides that a run is no longer improving."""

from __future__ import annotations

from bert_jax.training.evaluation import EarlyStopping


def test_a_repeated_evaluation_counts_once() -> None:
    """Repeat an evaluation, as happens if a run is killed after it and then resumed."""
    early = EarlyStopping("score", patience=1)
    early.observe_all([{"step": 10, "score": 0.5}, {"step": 20, "score": 0.7}])
    early.observe(20, {"score": 0.7})
    assert early.best_step == 20 and not early.enough
    early.observe(30, {"score": 0.7})
    # In a tie, the latest evaluation is the best, but does not count as an improvement.
    assert early.best_step == 30 and early.enough


def test_lower_can_be_better_and_a_patience_of_0_never_stops_a_run() -> None:
    early = EarlyStopping("loss", patience=0, lower_is_better=True)
    early.observe_all({"step": step, "loss": float(step)} for step in range(5))
    assert early.best_step == 0 and not early.enough
