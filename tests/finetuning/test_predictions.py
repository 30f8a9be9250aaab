"""Test that `predict` and `evaluate` give the same predictions for a validation set."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from bert_jax import AnswerQuestion, Classify
from bert_jax.cli import predict

from .conftest import sentence


@pytest.fixture
def predict_twice(bert_jax_here, monkeypatch, tmp_path):
    """Return a function that returns the predictions of both commands: (evaluated, predicted)."""
    monkeypatch.setattr(predict, "enable_compilation_cache", lambda: None)

    def run(work_dir: Path, data: Path, lines: list[dict], ending: str) -> tuple[str, list[dict]]:
        source = tmp_path / "lines.jsonl"
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        finished = bert_jax_here(
            "evaluate", work_dir, "--data", data, "--predictions", tmp_path / "predicted"
        )
        assert finished.code == 0, finished.errors
        evaluated = (tmp_path / f"predicted/{Path(data).stem}.{ending}").read_text()
        finished = bert_jax_here("predict", work_dir, "--input", source)
        assert finished.code == 0, finished.errors
        return evaluated, [json.loads(line) for line in finished.output.splitlines()]

    return run


def test_labels_of_a_single_score_are_the_same(toy, bert_jax_here, predict_twice, tmp_path):
    """Use texts that cover both labels, some of them longer than the run's rows."""
    work_dir, rng = tmp_path / "run", random.Random(1)
    words = toy.words("sigmoid", work_dir, "max_length=10")
    assert bert_jax_here(*words).code == 0
    texts = [sentence(rng, word) for word in ("lovely", "awful") * 20]
    data = tmp_path / "dev.tsv"
    data.write_text("sentence\tlabel\n" + "".join(f"{text}\t1\n" for text in texts))
    evaluated, predicted = predict_twice(work_dir, data, [{"text": text} for text in texts], "tsv")
    rows = [line.split("\t")[1] for line in evaluated.splitlines()[1:]]
    names = ["negative", "positive"]
    classify = Classify(work_dir)
    assert classify.max_length == 10
    assert list(classify("warm").scores) == names
    assert [names.index(line["label"]) for line in predicted] == [int(row) for row in rows]
    assert {line["label"] for line in predicted} == set(names)
    assert {line["truncated"] for line in predicted} == {False, True}


def test_predicted_answers_are_the_same(toy, bert_jax_here, predict_twice, tmp_path):
    """Use passages that need multiple windows, and answers of at most two word pieces."""
    work_dir, rng = tmp_path / "run", random.Random(1)
    words = toy.words("spans", work_dir, "num_epochs=1", "spans.max_answer_length=2")
    assert bert_jax_here(*words).code == 0
    contexts = [" ".join(sentence(rng, "rome", "ada") for _ in range(6)) for _ in range(30)]
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": str(number),
                    "question": "where is it ? " * 3,
                    "answers": [{"text": "rome", "answer_start": context.index("rome")}],
                }
            ],
        }
        for number, context in enumerate(contexts)
    ]
    data = tmp_path / "dev.json"
    data.write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    lines = [{"question": "where is it ? " * 3, "context": context} for context in contexts]
    evaluated, predicted = predict_twice(work_dir, data, lines, "json")
    assert [line["text"] for line in predicted] == list(json.loads(evaluated).values())
    assert all(line["question_truncated"] for line in predicted)
    assert all(len(line["text"].split()) <= 2 for line in predicted)
    defaults = AnswerQuestion(work_dir).defaults
    assert defaults is not None and defaults.max_length == 24
    assert vars(defaults.spans) == {"doc_stride": 4, "max_query_length": 4, "max_answer_length": 2}
