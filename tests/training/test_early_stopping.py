"""When a run has stopped getting better."""

from __future__ import annotations

from bert_jax.training.evaluation import EarlyStopping


def test_an_evaluation_that_is_made_again_counts_once() -> None:
    """A run that is killed behind an evaluation finds it in its log, and makes it again."""
    early = EarlyStopping("score", patience=1)
    early.observe_all([{"step": 10, "score": 0.5}, {"step": 20, "score": 0.7}])
    early.observe(20, {"score": 0.7})
    assert early.best_step == 20 and not early.enough
    early.observe(30, {"score": 0.7})
    assert early.best_step == 30 and early.enough  # of equals the last, which is no better


def test_less_is_better_where_it_is_said_and_without_patience_there_is_no_end() -> None:
    early = EarlyStopping("loss", patience=0, lower_is_better=True)
    early.observe_all({"step": step, "loss": float(step)} for step in range(5))
    assert early.best_step == 0 and not early.enough
