"""What the config says of rates, accumulation and evaluations is what a run does."""

from __future__ import annotations

import numpy as np
import pytest

from .conftest import TRAIN, history, parameters

# Nothing is drawn from the batch: runs of other programs learn the same but for rounding.
NO_DROPOUT = ("dropout=0", "head_dropout=0")


def test_lower_layers_move_less_by_the_decay(toy, make_source, bert_jax_here, tmp_path):
    """One step from the same parameters, on one batch: Adam's direction is the same."""
    init = make_source(num_layers=2)
    moved = {}
    for decay in (1.0, 0.5):
        work_dir = tmp_path / str(decay)
        words = (f"batch_size={TRAIN}", "num_epochs=1", f"tuning.layer_decay={decay}")
        finished = bert_jax_here(*toy.words("glue", work_dir, *words, *NO_DROPOUT, init=init))
        assert finished.code == 0, finished.errors
        found, before = parameters(work_dir, 1), parameters(init)
        moved[decay] = {name: found[name] - before[name] for name in found.keys() & before.keys()}
    powers = {"pooler.": 0, "encoder.layers.1.": 1, "encoder.layers.0.": 2, "encoder.embeddings": 3}
    for name, whole in moved[1.0].items():
        # Softmax takes no offset: the gradient of a key's bias is rounding.
        if name.endswith("key.bias"):
            continue
        (power,) = (k for prefix, k in powers.items() if name.startswith(prefix))
        assert np.abs(whole).max() > 1e-3, name
        expected = whole * 0.5**power
        np.testing.assert_allclose(moved[0.5][name], expected, rtol=1e-3, atol=1e-6, err_msg=name)


def test_accumulated_parts_are_the_batch(toy, bert_jax_here, tmp_path):
    told = []
    for parts in (1, 2):
        words = (f"accumulation_steps={parts}", "num_epochs=1", "optimizer.peak_learning_rate=1e-3")
        finished = bert_jax_here(*toy.words("glue", tmp_path / str(parts), *words, *NO_DROPOUT))
        assert finished.code == 0, finished.errors
        told.append({at: e["loss"] for at, e in history(tmp_path / str(parts)).items()})
    assert len(told[0]) == TRAIN // 16 + 1 and told[0].keys() == told[1].keys()
    for at, loss in told[0].items():
        assert told[1][at] == pytest.approx(loss, rel=1e-5), at
    assert told[0] != told[1]  # parts round otherwise


def test_evaluations_are_spread_evenly_over_every_epoch(toy, bert_jax_here, tmp_path):
    """Twelve steps an epoch in five: 2.4, 4.8, 7.2, 9.6 and 12."""
    finished = bert_jax_here(
        *toy.words("glue", tmp_path, "num_epochs=2", "evaluations_per_epoch=5")
    )
    assert finished.code == 0, finished.errors
    steps = [step for kind, step in history(tmp_path) if kind == "evaluation"]
    assert steps == [2, 5, 7, 10, 12, 14, 17, 19, 22, 24]
