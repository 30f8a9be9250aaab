"""Test that runs apply layer decay, gradient accumulation and the evaluation schedule."""

from __future__ import annotations

import numpy as np
import pytest

from .conftest import TRAIN, history, parameters

# Without dropout, runs with different programs have the same losses up to rounding errors.
NO_DROPOUT = ("dropout=0", "head_dropout=0")


def test_layer_decay_lowers_the_rate_of_lower_layers(toy, make_source, bert_jax_here, tmp_path):
    """Compare single steps of Adam, which have the same direction with and without decay."""
    init = make_source(num_layers=2)
    changes = {}
    for decay in (1.0, 0.5):
        work_dir = tmp_path / str(decay)
        words = (f"batch_size={TRAIN}", "num_epochs=1", f"tuning.layer_decay={decay}")
        finished = bert_jax_here(*toy.words("glue", work_dir, *words, *NO_DROPOUT, init=init))
        assert finished.code == 0, finished.errors
        found, before = parameters(work_dir, 1), parameters(init)
        changes[decay] = {name: found[name] - before[name] for name in found.keys() & before.keys()}
    powers = {"pooler.": 0, "encoder.layers.1.": 1, "encoder.layers.0.": 2, "encoder.embeddings": 3}
    for name, change in changes[1.0].items():
        # Softmax is invariant to offsets, so the gradient of a key bias consists only of rounding
        # errors.
        if name.endswith("key.bias"):
            continue
        (power,) = (k for prefix, k in powers.items() if name.startswith(prefix))
        assert np.abs(change).max() > 1e-3, name
        expected = change * 0.5**power
        np.testing.assert_allclose(changes[0.5][name], expected, rtol=1e-3, atol=1e-6, err_msg=name)


def test_accumulated_parts_match_the_whole_batch(toy, bert_jax_here, tmp_path):
    losses = []
    for parts in (1, 2):
        words = (f"accumulation_steps={parts}", "num_epochs=1", "optimizer.peak_learning_rate=1e-3")
        finished = bert_jax_here(*toy.words("glue", tmp_path / str(parts), *words, *NO_DROPOUT))
        assert finished.code == 0, finished.errors
        losses.append({at: e["loss"] for at, e in history(tmp_path / str(parts)).items()})
    assert len(losses[0]) == TRAIN // 16 + 1 and losses[0].keys() == losses[1].keys()
    for at, loss in losses[0].items():
        assert losses[1][at] == pytest.approx(loss, rel=1e-5), at
    # The losses are not exactly equal, because splitting a batch changes the rounding.
    assert losses[0] != losses[1]


def test_evaluations_are_spread_evenly_over_every_epoch(toy, bert_jax_here, tmp_path):
    """Check that evaluations due at fractional steps, such as 2.4, run at the nearest step."""
    finished = bert_jax_here(
        *toy.words("glue", tmp_path, "num_epochs=2", "evaluations_per_epoch=5")
    )
    assert finished.code == 0, finished.errors
    steps = [step for kind, step in history(tmp_path) if kind == "evaluation"]
    assert steps == [2, 5, 7, 10, 12, 14, 17, 19, 22, 24]
