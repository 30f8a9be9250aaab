"""Test that mistakes in files and configs are reported concisely and before training."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from bert_jax import FillMask
from bert_jax.tokenizers.tokenizer import Tokenizer

from .conftest import squad


@pytest.fixture
def refused(toy, bert_jax_here, tmp_path):
    """Return a function that starts a run, expects an error, and returns the error message."""

    def run(task: str, *overrides: str, init: Path | None = None) -> str:
        finished = bert_jax_here(*toy.words(task, tmp_path / "run", *overrides, init=init))
        assert finished.code == 2, finished.output
        assert "Traceback" not in finished.errors
        assert not (tmp_path / "run/checkpoints").exists() or not any(
            (tmp_path / "run/checkpoints").iterdir()
        )
        return finished.errors

    return run


TSV = "sentence\tlabel\nlovely film\t1\nawful film\t0\n"
IOB1 = "matt\tI-PER\nwas\tO\n\nrome\tI-LOC\nparis\tB-LOC\n\nada\tB-PER\n"
BAD_FILES = {
    "a wrong column": ("reviews.tsv", "text\tlabel\na\t1\n", ":1: no column is named 'sentence'"),
    "another label": ("reviews.tsv", TSV + "a\t2\n", ":4: label '2' is not one of '0', '1'"),
    "a row too short": ("reviews.tsv", TSV + "a\n", ":4: the row ends before column 'label'"),
    "nothing but a header": ("reviews.tsv", "sentence\tlabel\n", "contains no rows. Add"),
    "an empty file": ("reviews.tsv", "", "is empty. Add at least one example"),
    "a tab in a text": (
        "reviews.tsv",
        TSV + "a\tb\t1\n",
        ":4: the line has 3 columns, but the first line",
    ),
    "no number": ("scores.jsonl", '{"a": "x", "b": "y", "score": "high"}\n', ":1: label 'high'"),
    "no such choice": (
        "choices.csv",
        "context,e0,e1,e2,label\na,b,c,d,3\n",
        ":2: label '3' is not",
    ),
    "mixed schemes": ("tagged.txt", IOB1, "mixed tag schemes: "),
    "a tag never seen": (
        "tagged.txt",
        "matt\tB-GPE\n",
        ":1: tag 'B-GPE' is not one of the model's labels ('O'",
    ),
    "no sentence": ("tagged.txt", "\n\n", "contains no sentences. Add at least one"),
    "no question": ("questions.json", '{"data": []}', "contains no questions. SQuAD files"),
}
PLACES = {
    "reviews": ("glue", "glue.validation"),
    "scores": ("regression", "sentences.files.validation"),
    "choices": ("choices", "choices.files.validation"),
    "tagged": ("tags", "tags.files.validation"),
    "questions": ("spans", "spans.files.validation"),
}


@pytest.mark.parametrize(("name", "text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_errors_name_the_file_line_and_value(refused, tmp_path, name, text, message):
    file = tmp_path / name
    file.write_text(text)
    task, key = PLACES[file.stem]
    assert f"{file}" in (errors := refused(task, f"{key}={file}"))
    assert message in errors


def test_an_answer_with_a_wrong_offset_is_refused(refused, tmp_path):
    content = squad(random.Random(0), 2, "q")
    answer = content["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]
    answer["answer_start"] += 1
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(content))
    errors = refused("spans", f"spans.files.train={file}")
    assert f"{file}: data[0].paragraphs[1].qas[0].answers[0]: the answer to question q1" in errors
    assert f"offset {answer['answer_start']}: expected {answer['text']!r}, but the" in errors


@pytest.mark.parametrize(
    ("task", "text", "override", "message"),
    [
        ("regression", '{"a": "x", "b": "y"}\n', "sentences.files.train", "no field 'score'"),
        ("choices", "context,e0,e1,label\na,b,c,1\n", "choices.files.train", "no column is named"),
        ("tags", "matt\n", "tags.files.train", "'matt' has no tag in column 1 (columns are"),
        ("spans", "{", "spans.files.test", "not valid JSON"),
        ("tags", "", "tags.files.test", "contains no sentences"),
    ],
)
def test_every_split_is_read_before_training(refused, tmp_path, task, text, override, message):
    file = tmp_path / "file"
    file.write_text(text)
    errors = refused(task, f"{override}={file}")
    assert str(file) in errors and message in errors


@pytest.mark.parametrize(
    ("task", "overrides", "message"),
    [
        (
            "glue",
            ["glue.directory=nowhere"],
            "error: --config.glue.directory=nowhere: no such directory.",
        ),
        ("glue", ["glue.task=SST2"], "unknown GLUE task 'SST2'. Use one of CoLA"),
        ("glue", ["max_length=33"], "max_length=33: the model in"),
        ("glue", ["max_length=2"], "max_length=2: expected at least 3"),
        ("glue", ["best_metric=f1"], "best_metric='f1': not a metric of this task. Use one of"),
        ("tags", ["best_metric=pearson"], "Use one of f1, precision, recall, accuracy, loss"),
        ("glue", ["batch_size=12"], "batch_size=12 is not divisible by 8"),
        ("glue", ["accumulation_steps=4"], "batch_size=16 is not divisible by 32"),
        ("glue", ["evaluation_batch_size=20"], "evaluation_batch_size=20 is not divisible by 8"),
        ("glue", ["tuning.top_layers=2"], "tuning.top_layers=2: expected at most 1, the num"),
        ("glue", ["mesh.data=3"], "does not fit 8 devices"),
        ("glue", ["patience=-1"], "patience=-1: must be 0 or more"),
        (
            "regression",
            ["sentences.metrics=pearson,roc"],
            "'pearson,roc' is unknown. Metrics for a number: ",
        ),
        (
            "regression",
            ["sentences.files.labels=a,b"],
            "Write several labels as \"('a', 'b')\", with the quotes",
        ),
        ("glue", ["max_shapes=0"], "max_shapes=0: must be at least 1"),
        ("glue", ["num_epoch=1"], "config.num_epoch: no such key; nearest: num_epochs"),
        ("sigmoid", ["glue.task=MNLI"], "sigmoid=True: needs two labels, but MNLI has 3"),
        (
            "spans",
            ["head_dropout=0.5"],
            "head_dropout=0.5: head='span' has no dropout. Set head_dropout=0",
        ),
        ("glue", ["head_dropout=1"], "head_dropout=1.0: expected 0 <= x < 1, or -1"),
        ("spans", ["spans.n_best=0"], "n_best=0: must be at least 1"),
        ("spans", ["spans.max_answer_length=-3"], "max_answer_length=-3: must be at least 1"),
        (
            "regression",
            ["sentences.files.labels=('a', 'b', 'c')", "sentences.metrics=('f1',)"],
            "'f1' needs two labels, got ('a', 'b', 'c'). Use 'macro_f1'",
        ),
        ("spans", ["max_length=10"], "max_length=10: leaves 3 tokens for the passage"),
        ("glue", ["batch_size=8000000000"], "does not fit in memory: it needs at least"),
        ("glue", ["batch_size=8000000000"], "Lower batch_size=8000000000 or max_length="),
        ("choices", ["num_epochs=1000000000000"], "expected at most 2,147,483,647. Lower"),
    ],
)
def test_settings_that_do_not_fit_are_refused(refused, task, overrides, message):
    assert message in refused(task, *overrides)


def test_exactly_one_task_is_required(toy, refused):
    one = (toy.root / "glue.py").read_text()
    none = toy.root / "none.py"
    none.write_text(one.replace("'glue': ", "'report_every_steps': 1 or "))
    assert "spans; got none" in refused("none")
    two = toy.root / "two.py"
    two.write_text(one.replace("'glue': ", "'spans': {'files': {'train': 'x'}}, 'glue': "))
    assert "spans; got glue, spans" in refused("two")


def test_the_initial_model_is_checked(refused, make_source, tmp_path):
    assert f"{tmp_path}: contains no model.json" in refused("glue", init=tmp_path)
    empty = make_source()
    for checkpoint in (empty / "checkpoints").iterdir():
        checkpoint.rename(tmp_path / "elsewhere")
    assert "contains no complete checkpoint" in refused("glue", init=empty)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["one", "two", "three"], "is not the tokenizer that the model in"),
        ([f"word{number}" for number in range(200)], "has 205 tokens, but the token table of the"),
    ],
)
def test_a_model_with_a_different_tokenizer_is_refused(
    refused, bert_jax_here, make_source, words, message
):
    """Check the tokenizer up front, since looking up a wrong token ID raises no error."""
    work_dir = make_source()
    shutil.rmtree(work_dir / "tokenizer")
    vocabulary = work_dir / "other.txt"
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary.write_text("".join(f"{word}\n" for word in [*specials, *words]))
    Tokenizer.load(vocabulary).save(work_dir / "tokenizer")
    assert message in refused("glue", init=work_dir)
    exported = ("--format", "stablehlo", "--output", work_dir / "out")
    options = ("--input", vocabulary)
    for verb in (["export", work_dir, *exported], ["predict", work_dir, *options]):
        finished = bert_jax_here(*verb)
        assert finished.code == 2 and message in finished.errors
    with pytest.raises(ValueError, match=re.escape(message)):
        FillMask(work_dir)


@pytest.mark.parametrize("top", [1, 2])
def test_a_scan_over_partly_frozen_layers_is_refused(refused, make_source, top):
    words = (f"tuning.top_layers={top}", "compute.scan_layers=True")
    errors = refused("glue", *words, init=make_source(num_layers=3))
    assert "compute.scan_layers=True: a scan differentiates all 3 layers, but" in errors
    assert f"only tuning.top_layers={top} are trainable. Set compute.scan_layers=False" in errors


def test_the_initial_model_is_not_overwritten(toy, bert_jax_here, source):
    refused = bert_jax_here(*toy.words("glue", source))
    assert refused.code == 2
    assert f"work_dir={source}: this is also init_from, the directory" in refused.errors


def test_only_fine_tuning_directories_can_be_evaluated(bert_jax_here, source, tmp_path):
    for directory, message in (
        (tmp_path, "contains no model.json. Specify the work directory of a `bert-jax finetune`"),
        (source, "this model was not fine-tuned on a task. It fills masks"),
    ):
        finished = bert_jax_here("evaluate", directory)
        assert finished.code == 2
        assert message in finished.errors
