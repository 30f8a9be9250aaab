"""Test training, scoring and predicting for every kind of task, starting from files."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from bert_jax.finetuning.sentences import SentencesConfig
from bert_jax.finetuning.spans import SpansConfig, SpanSet
from bert_jax.finetuning.tags import TagsConfig, TagSet
from bert_jax.labeled_data.sentences import SentenceFiles
from bert_jax.labeled_data.squad import SpanFiles
from bert_jax.labeled_data.tags import TagFiles
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import GOOD, history, scores

# The scores that a model must reach to show that it has learned its task.
MINIMUM_SCORES = {
    "glue": {"accuracy": 1.0},
    "sigmoid": {"accuracy": 1.0},
    "regression": {"pearson": 0.9},
    "several": {"micro_f1": 1.0},
    "choices": {"accuracy": 1.0},
    "tags": {"f1": 1.0, "accuracy": 1.0},
    "spans": {"exact_match": 1.0, "f1": 1.0},
}
# Additional settings for some tasks.
SETTINGS = {
    "several": (
        *("dropout=0.0", "head_dropout=0.0", "optimizer.peak_learning_rate=5e-3"),
        *("batch_size=8", "num_epochs=16"),
    ),
    "regression": ("dropout=0.0", "head_dropout=0.0", "optimizer.peak_learning_rate=3e-2"),
}


def _predictions_of_reviews(root: Path, predictions: Path) -> tuple[list, list]:
    rows = [line.split("\t") for line in (root / "reviews/test.tsv").read_text().splitlines()[1:]]
    right = {int(index): int(bool(set(text.split()) & set(GOOD))) for index, text in rows}
    lines = (predictions / "SST-2.tsv").read_text().splitlines()[1:]
    return lines, [f"{index}\t{right[index]}" for index in sorted(right)]


def _predictions_of_several_labels(root: Path, predictions: Path) -> tuple[list, list]:
    predicted = (predictions / "test.tsv").read_text().splitlines()
    right = (root / "several/test.tsv").read_text().splitlines()[1:]
    assert predicted[0] == "index\tprediction"
    rows = [f"{index}\t{line.split(chr(9))[1]}" for index, line in enumerate(right)]
    return predicted[1:], rows


def _predictions_of_choices(root: Path, predictions: Path) -> tuple[list, list]:
    def column(file: Path, name: str) -> list[str]:
        with file.open(newline="") as rows:
            return [row[name] for row in csv.DictReader(rows)]

    return column(predictions / "test.csv", "pred"), column(root / "choices/test.csv", "label")


def _predictions_of_tags(root: Path, predictions: Path) -> tuple[list, list]:
    rows = [line.split("\t") for line in (predictions / "test.txt").read_text().splitlines()]
    given = (root / "tagged/test.txt").read_text().splitlines()
    assert ["\t".join(row[:2]) for row in rows if row != [""]] == [x for x in given if x]
    return [row[2:] for row in rows], [row[1:2] for row in rows]


def _predictions_of_questions(root: Path, predictions: Path) -> tuple[list, list]:
    (article,) = json.loads((root / "questions/test.json").read_text())["data"]
    given = [question for paragraph in article["paragraphs"] for question in paragraph["qas"]]
    predicted = json.loads((predictions / "test.json").read_text())
    right = [(each["id"], each["answers"][0]["text"]) for each in given]
    return [(each["id"], predicted[each["id"]]) for each in given], right


# Functions that return (predictions, correct answers) for a task's test set.
PREDICTIONS = {
    "glue": _predictions_of_reviews,
    "sigmoid": _predictions_of_reviews,
    "several": _predictions_of_several_labels,
    "choices": _predictions_of_choices,
    "tags": _predictions_of_tags,
    "spans": _predictions_of_questions,
}


@pytest.mark.parametrize("task", MINIMUM_SCORES)
def test_a_task_can_be_learned_and_evaluate_gives_the_runs_scores(
    toy, bert_jax_here, tmp_path: Path, task: str
) -> None:
    work_dir = tmp_path / "run"
    finished = bert_jax_here(*toy.words(task, work_dir, *SETTINGS.get(task, ())))
    assert finished.code == 0, finished.errors
    result = scores(work_dir)
    for metric, least in MINIMUM_SCORES[task].items():
        assert result["scores"][metric] >= least, finished.output
    assert {
        k: v for k, v in history(work_dir)["evaluation", result["step"]].items() if k != "step"
    } == result["scores"]
    if task != "regression":  # The regression task has no test set.
        predicted, right = PREDICTIONS[task](toy.root, work_dir / "predictions")
        assert len(predicted) == len(right) > 4
        assert predicted == right
        again = tmp_path / "again"
        words = ("evaluate", work_dir, "--unlabelled", "--predictions", again)
        assert bert_jax_here(*words).code == 0
        for file in map(Path, result["predictions"]):
            assert (again / file.name).read_bytes() == file.read_bytes()

    output = tmp_path / "scores.json"
    words = ("evaluate", work_dir, "--output", output, "--predictions", tmp_path / "predicted")
    finished = bert_jax_here(*words)
    assert finished.code == 0, finished.errors
    again = json.loads(output.read_text())
    assert again["step"] == result["step"]
    assert again["sets"]["validation"]["scores"] == result["scores"]
    assert again["sets"]["validation"]["examples"] >= 21
    assert f"step {result['step']}" in finished.output


@pytest.mark.parametrize("letters", ["IES", "ILU", "MES"])
def test_entities_are_scored_in_every_scheme(toy, tmp_path: Path, letters: str) -> None:
    """Check that BIOES, BILOU and BMES entities get the same scores as IOB2 entities."""
    inside, last, single = letters
    text = f"matt\t{single}-PER\nwent\tO\nnew\tB-LOC\nyork\t{inside}-LOC\ncity\t{last}-LOC\n\n"
    text += f"rome\t{single}-LOC\n"
    file = tmp_path / "tags.txt"
    file.write_text(text)
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    result = {}
    for learn_as in ("as_written", "IOB2"):
        files = TagFiles(train=str(file), validation=str(file), learn_as=learn_as)
        data = TagsConfig(files).open(tokenizer, 32, ["train", "validation"])
        assert data.primary == "f1"
        examples = data.validation["validation"]
        assert isinstance(examples, TagSet)
        labels = examples.windows.labels
        assert (f"{single}-PER" in labels) == (learn_as == "as_written")
        # Predict all entities correctly except the last one, which is missed.
        logits = np.zeros((len(examples.features.sequences.token_ids), len(labels)), np.float32)
        gold = examples.features.token_targets["labels"].copy()
        gold[examples.windows.positions[-1]] = labels.index("O")
        logits[np.arange(len(gold)), gold] = 1
        result[learn_as] = examples.scores(logits)
        (written,) = examples.write(logits, tmp_path, learn_as)
        rows = [line.split("\t") for line in written.read_text().splitlines() if line]
        assert [row[-2] for row in rows] == [row[-1] for row in rows[:-1]] + [rows[-1][-2]]
        assert rows[-1][-1] == "O"
        own = {row[-1][:1] for row in rows}
        # These predictions are converted to IOB2 for conlleval.
        restated = letters == "IES" and learn_as == "IOB2"
        assert own == ({"B", "I", "O"} if restated else {"B", *letters, "O"})
    assert result["as_written"] == result["IOB2"]
    assert result["IOB2"]["precision"] == 1.0 and result["IOB2"]["recall"] == pytest.approx(2 / 3)


def test_a_training_file_may_lack_tags_of_the_scheme(toy, tmp_path: Path, caplog) -> None:
    """Check that a model trained without one-word entities misses them in the held-out file."""
    train, held_out = tmp_path / "train.txt", tmp_path / "held_out.txt"
    train.write_text("new\tB-LOC\nyork\tI-LOC\ncity\tI-LOC\nis\tO\n")
    held_out.write_text("new\tB-LOC\nyork\tL-LOC\nis\tO\nin\tO\n\nrome\tU-LOC\n")
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    scores = {}
    for learn_as in ("as_written", "IOB2"):
        files = TagFiles(train=str(train), validation=str(held_out), learn_as=learn_as)
        data = TagsConfig(files).open(tokenizer, 32, ["train", "validation"])
        examples = data.validation["validation"]
        assert isinstance(examples, TagSet)
        logits = np.zeros((len(examples.features.sequences.token_ids), 3), np.float32)
        predicted = ("B-LOC", "I-LOC", "O", "O", "O")
        for place, tag in zip(examples.windows.positions, predicted, strict=True):
            logits[place, examples.windows.labels.index(tag)] = 1
        scores[learn_as] = examples.scores(logits)
    assert scores["as_written"]["precision"] == 1.0 and scores["as_written"]["recall"] == 0.5
    assert scores["IOB2"] == scores["as_written"] | {"accuracy": 0.8}
    assert (
        "tag 'L-LOC' is not one of the model's labels. 2 of 5 words have such tags" in caplog.text
    )


def test_labels_without_examples_are_reported(tmp_path, toy, caplog) -> None:
    file = tmp_path / "train.tsv"
    file.write_text("text\tlabel\nfine\tgood\nawful\tbad\n")
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    labels = ("bad", "none", "good", "mixed")
    files = SentenceFiles(str(file), str(file), first="text", labels=labels)
    data = SentencesConfig(files).open(tokenizer, 16, ("train", "validation"))
    (message,) = caplog.messages
    assert message.endswith(
        "train.tsv: 2 of 4 labels occur in no training example: 'none', 'mixed'"
    )
    assert data.validation["validation"].type_is == "class"


def test_random_answers_are_not_better_than_chance(toy, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    rng = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdgklmnprst" for b in ("a", "e", "i", "o")]
    text = " ".join(rng.choice(words, 60))
    starts = [0, *(place + 1 for place, letter in enumerate(text) if letter == " ")]
    questions = []
    for number in range(200):
        first = int(rng.integers(0, 58))
        begin, end = starts[first], starts[first + 2] - 1
        answer = {"text": text[begin:end], "answer_start": begin}
        questions.append({"id": str(number), "question": "where?", "answers": [answer]})
    article = {"paragraphs": [{"context": text, "qas": questions}]}
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"data": [article]}))
    config = SpansConfig(SpanFiles(str(file), str(file)), doc_stride=32)
    examples = config.open(tokenizer, 128, ["validation"]).validation["validation"]
    assert isinstance(examples, SpanSet)
    shape = (len(examples.features.sequences.token_ids), 2)
    result = [examples.scores(rng.normal(size=shape).astype(np.float32))["f1"] for _ in range(3)]
    assert 0.01 < max(result) < examples.chance("f1") < 0.5


def test_a_constant_regression_is_not_better_than_chance(toy, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "rated.tsv"
    rows = (f"text {number}\t{rating:.3f}" for number, rating in enumerate(rng.uniform(0, 5, 500)))
    file.write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    files = SentenceFiles(str(file), str(file), first="text")
    tokenizer = Tokenizer.load(toy.source / "tokenizer")
    data = SentencesConfig(files).open(tokenizer, 16, ("validation",))
    examples = data.validation["validation"]
    chance = examples.chance("pearson")
    assert chance == pytest.approx(1.645 / 499**0.5)
    samples = [2.5 + 1e-4 * rng.normal(size=(500, 1)).astype(np.float32) for _ in range(200)]
    above = sum(examples.scores(logits)["pearson"] > chance for logits in samples)
    assert 1 <= above <= 20  # The expected number is 10, with a standard deviation of 3.
