"""Test that runs on several devices and processes survive a divergence, and resume exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.training.learning_rates import LearningRates
from bert_jax.training.metrics_log import read_metrics

pytestmark = pytest.mark.slow

SETTINGS = (
    "divergence.window_steps=8",
    "divergence.max_outliers=1",
    "divergence.max_rollbacks=20",
    "divergence.margin_steps=2",
)
STEPS, HALF = 36, 18
# With this limit, ordinary fluctuations of the loss count as outliers, so that one outlier often
# follows another.
STRICT = "divergence.max_deviations=0.7"
MEASURED = ("seconds", "tokens_per_second", "stall", "utilisation", "compiling")


def history(work_dir: Path) -> list[dict[str, Any]]:
    """Return the log of a run, without measured times."""
    entries = read_metrics(work_dir / "metrics.jsonl")
    return [{key: x for key, x in entry.items() if key not in MEASURED} for entry in entries]


def kinds(work_dir: Path) -> dict[str, list[int]]:
    steps: dict[str, list[int]] = {"skip": [], "rollback": []}
    for entry in history(work_dir):
        if entry["kind"] in steps:
            steps[entry["kind"]].append(entry["step"])
    return steps


def test_eight_devices_skip_and_roll_back(
    bert_jax_here: Any, short_run: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Raise the learning rate at a single step, so that the losses after it are outliers."""
    rate_of = LearningRates.__getitem__

    def spiking(self: LearningRates, step: int) -> np.float32:
        return np.float32(10.0) if step == 20 else rate_of(self, step)

    monkeypatch.setattr(LearningRates, "__getitem__", spiking)
    events = tmp_path / "events"
    words = [*SETTINGS, f"phases.only.num_steps={STEPS}", "mesh.data=2", "mesh.fsdp=4"]
    words.append(f"reporting.notify=echo $BERT_JAX_EVENT $BERT_JAX_STEP >> {events}")
    finished = bert_jax_here(*short_run(tmp_path, *words))
    assert finished.code == 0, finished.errors
    # Batches 21 and 22 are outliers. The newest checkpoint at least two steps before batch 21 is at
    # step 18, which was evaluated.
    assert kinds(tmp_path) == {"skip": [22, 23], "rollback": [23]}
    assert "Rolled back to the checkpoint at step 18 and skipped batches 18 to 22" in (
        finished.errors
    )
    assert events.read_text().splitlines() == ["start 0", "divergence 23", f"end {STEPS}"]
    heartbeat = json.loads((tmp_path / "heartbeat.json").read_text())
    assert heartbeat["state"] == "finished" and heartbeat["step"] == STEPS
    last = history(tmp_path)[-1]
    assert last["kind"] == "evaluation" and last["step"] == STEPS and last["mlm_loss"] < 6


def test_two_processes_agree_and_resume_exactly(
    bert_jax: Any, short_run: Any, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"

    def run(work_dir: Path, steps: int) -> None:
        words = short_run(work_dir, *SETTINGS, STRICT, f"phases.only.num_steps={steps}")
        bert_jax(*words, launcher=2, devices=2)

    run(whole, STEPS)
    found = kinds(whole)
    assert found["skip"] and found["rollback"], found
    # The longer run saves the state in which the shorter one ends.
    run(parts, HALF)
    run(parts, STEPS)
    assert history(parts) == history(whole)
