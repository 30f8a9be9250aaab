"""What `finetune` says of a run that has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from bert_jax.finetuning.outcome import Outcome, conclusion
from bert_jax.runs.work_dir import Comparison


@pytest.mark.parametrize(
    ("best_metric", "accuracy", "told"),
    [("accuracy", 0.527, True), ("accuracy", 0.531, False), ("loss", 0.3, True)],
)
def test_a_run_no_better_than_chance_is_told(best_metric: str, accuracy: float, told: bool) -> None:
    outcome = Outcome(78, {"accuracy": accuracy, "loss": 0.69}, [], {})
    data: Any = SimpleNamespace(best_metric="accuracy", chance={"accuracy": 0.527}.__getitem__)
    lines = conclusion(outcome, data, Comparison(best_metric))
    assert lines[0] == f"best after step 78 by {best_metric}:"
    notes = [line for line in lines if line.startswith("NOTE")]
    assert bool(notes) is told
    if told:
        assert f"accuracy is {accuracy:.1%}; 52.7% is possible without reading" in notes[0]
