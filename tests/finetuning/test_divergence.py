"""Test that a fine-tuning run rolls back after a divergence, and resumes exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.reporting import Reporter

from .conftest import WHOLE, history, parameters

pytestmark = pytest.mark.slow

SETTINGS = ("divergence.max_rollbacks=2", "divergence.margin_steps=2")
SPIKE = 19  # The learning rate is infinite for the batch with this index.


@pytest.fixture
def infinite_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    rate_of = LearningRates.__getitem__

    def spiking(self: LearningRates, step: int) -> np.float32:
        return np.float32(np.inf) if step == SPIKE else rate_of(self, step)

    monkeypatch.setattr(LearningRates, "__getitem__", spiking)


@pytest.mark.usefixtures("infinite_rate")
def test_a_run_survives_infinite_parameters(
    toy: Any, bert_jax_here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finished = bert_jax_here(*toy.words("glue", whole, *WHOLE, *SETTINGS))
    assert finished.code == 0, finished.errors
    # The update with batch 19 makes the parameters infinite, which is noticed at batch 20. The
    # newest checkpoint at least two steps before batch 20 is the one at step 18.
    text = finished.errors
    assert "step 21 (batch 20): its loss is nan" in text
    assert "The first parameters that are not finite are encoder.embeddings" in text
    assert "Rolled back to the checkpoint at step 18 and skipped batches 18 to 20" in text
    assert all(np.isfinite(x).all() for x in parameters(whole).values())

    # Stop a second run just before the divergence.
    original = Reporter.train

    def train(self: Reporter, step: int, *args: Any, **details: Any) -> None:
        original(self, step, *args, **details)
        if step == SPIKE - 1:
            os.kill(os.getpid(), signal.SIGTERM)

    words = toy.words("glue", parts, *WHOLE, *SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr(Reporter, "train", train)
        assert bert_jax_here(*words).code == 143
    assert bert_jax_here(*words).code == 0
    assert history(parts) == history(whole)
    result, expected = parameters(parts), parameters(whole)
    for name, value in expected.items():
        np.testing.assert_array_equal(result[name], value, err_msg=name)
