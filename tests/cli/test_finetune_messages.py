"""Test the messages that `finetune` prints at the end of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.finetuning.outcome import Outcome, conclusion
from bert_jax.runs.work_dir import Comparison


@pytest.mark.parametrize(
    ("best_metric", "accuracy", "marked"),
    [("accuracy", 0.527, True), ("accuracy", 0.531, False), ("loss", 0.3, True)],
)
def test_a_note_marks_runs_that_are_not_better_than_chance(
    best_metric: str, accuracy: float, marked: bool
) -> None:
    outcome = Outcome(78, {"accuracy": accuracy, "loss": 0.69}, [], {})
    data: Any = SimpleNamespace(best_metric="accuracy", chance={"accuracy": 0.527}.__getitem__)
    lines = conclusion(outcome, data, Comparison(best_metric))
    assert lines[0] == f"best checkpoint by {best_metric}: step 78"
    notes = [line for line in lines if line.startswith("NOTE")]
    assert bool(notes) is marked
    if marked:
        assert f"accuracy is {accuracy:.1%}; 52.7% is possible without reading" in notes[0]
