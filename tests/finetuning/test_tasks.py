"""Every kind of task, from its files to its predictions: learned, scored, written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import history, scores

# What a model that has understood the task gets.
LEARNED = {
    "glue": {"accuracy": 1.0},
    "sigmoid": {"accuracy": 1.0},
    "regression": {"pearson": 0.9},
    "choices": {"accuracy": 1.0},
    "tags": {"f1": 1.0, "accuracy": 1.0},
    "spans": {"exact_match": 1.0, "f1": 1.0},
}
# What a task wants besides.
MORE = {
    "regression": ("dropout=0.0", "head_dropout=0.0", "optimizer.peak_learning_rate=3e-2"),
}


@pytest.mark.parametrize("task", LEARNED)
def test_a_task_is_learned_and_its_evaluation_is_the_runs(
    toy, bert_jax_here, tmp_path: Path, task: str
) -> None:
    work_dir = tmp_path / "run"
    finished = bert_jax_here(*toy.words(task, work_dir, *MORE.get(task, ())))
    assert finished.code == 0, finished.errors
    found = scores(work_dir)
    for metric, least in LEARNED[task].items():
        assert found["scores"][metric] >= least, finished.output
    assert {
        k: v for k, v in history(work_dir)["evaluation", found["step"]].items() if k != "step"
    } == found["scores"]
    for file in found["predictions"]:
        assert Path(file).is_file()

    output = tmp_path / "scores.json"
    words = ("evaluate", work_dir, "--output", output, "--predictions", tmp_path / "predicted")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    again = json.loads(output.read_text())
    assert again["step"] == found["step"]
    assert again["sets"]["validation"]["scores"] == found["scores"]
    assert again["sets"]["validation"]["examples"] >= 21
    assert f"step {found['step']}" in finished.output
