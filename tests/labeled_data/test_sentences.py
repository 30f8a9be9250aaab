"""Test that labels are checked line by line, and that tokens match Hugging Face's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.features import truncate_pair
from bert_jax.labeled_data.glue import glue_files
from bert_jax.labeled_data.sentences import (
    SentenceExamples,
    SentenceFiles,
    read_sentences,
    sentence_features,
)
from bert_jax.tokenizers.tokenizer import Tokenizer


def assert_matches_hugging_face(
    examples: SentenceExamples, vocabulary: Path, max_length: int
) -> None:
    sequences = sentence_features(examples, Tokenizer.load(vocabulary), max_length, ()).sequences
    expected = BertTokenizerFast(vocab=str(vocabulary))(
        examples.firsts, examples.seconds, truncation=True, max_length=max_length
    )
    ids, segments = expected["input_ids"], expected["token_type_ids"]
    assert sequences.lengths.tolist() == list(map(len, ids))
    assert sequences.token_ids.tolist() == [token for row in ids for token in row]
    assert sequences.second_starts.tolist() == [len(row) - sum(row) for row in segments]


GLUE_DEV_ROWS = {"SST-2": 872, "CoLA": 1_043, "MRPC": 408, "RTE": 277, "STS-B": 1_500}


@pytest.mark.parametrize("max_length", [128, 24])
@pytest.mark.parametrize("task", GLUE_DEV_ROWS)
def test_tokens_of_glue_match_hugging_face(shared_data: Path, task: str, max_length: int) -> None:
    files = glue_files(task, str(shared_data / "glue" / task)).validation["validation"]
    examples = read_sentences(files, "validation", labeled=True)
    assert len(examples) == GLUE_DEV_ROWS[task]
    # Other tests cover labels. Features of unlabeled examples do not depend on the task's labels.
    unlabeled = SentenceExamples(
        examples.firsts, examples.seconds, None, examples.ids, examples.locations
    )
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    assert_matches_hugging_face(unlabeled, vocabulary, max_length)


@pytest.mark.parametrize("max_length", [128, 24])
def test_tokens_of_mnli_match_hugging_face(shared_data: Path, max_length: int) -> None:
    files = SentenceFiles(
        validation=str(shared_data / "mnli/dev_matched.jsonl"),
        form=TableFormat(kind="jsonl"),
        first="premise",
        second="hypothesis",
        labels=("entailment", "neutral", "contradiction"),
    )
    examples = read_sentences(files, "validation", labeled=True)
    assert examples.labels is not None
    counts = [examples.labels.count(label) for label in files.labels]
    assert counts == [3_479, 3_123, 3_213]  # These are the published counts.
    unlabeled = read_sentences(files, "validation", labeled=False)
    assert unlabeled.labels is None
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    assert_matches_hugging_face(unlabeled, vocabulary, max_length)


def test_truncation_matches_hugging_face_for_all_lengths(tmp_path: Path) -> None:
    vocabulary = tmp_path / "vocab.txt"
    words = [f"a{chr(97 + i)}" for i in range(12)]
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    pairs = [(" ".join(words[:m]), " ".join(words[:n])) for m in range(12) for n in range(12)]
    examples = SentenceExamples(
        [first for first, _ in pairs], [second for _, second in pairs], None, [""] * 144, [""] * 144
    )
    for max_length in range(4, 26):
        assert_matches_hugging_face(examples, vocabulary, max_length)
    assert truncate_pair([1, 2, 3], [4], 5) == ([1, 2, 3], [4])


@pytest.fixture
def tokenizer(tmp_path: Path) -> Tokenizer:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] good bad film".split()))
    return Tokenizer.load(path)


def files_of(tmp_path: Path, text: str, **options) -> SentenceFiles:
    path = tmp_path / "train.tsv"
    path.write_text(text)
    return SentenceFiles(train=str(path), **options)


def test_classes_are_indices_of_labels(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "sentence\tlabel\tid\ngood film\tpos\tx7\nbad\tneg\tx8\n"
    files = files_of(tmp_path, text, labels=("neg", "pos"), index="id")
    examples = read_sentences(files, "train", labeled=True)
    assert examples.ids == ["x7", "x8"]
    features = sentence_features(examples, tokenizer, 3, files.labels)
    assert features.targets["labels"].dtype == np.int32
    batch = features.batch(np.array([0, 1]), 3)
    assert batch["labels"].tolist() == [1, 0]
    assert batch["token_ids"].tolist() == [[2, 5, 3], [2, 6, 3]]  # The first row is truncated.


def test_numbers_are_float32(tmp_path: Path, tokenizer: Tokenizer) -> None:
    records = [{"sentence": "good", "label": 5}, {"sentence": "bad", "label": "-.25e1"}]
    files = files_of(tmp_path, "\n".join(map(json.dumps, records)), form=TableFormat(kind="jsonl"))
    examples = read_sentences(files, "train", labeled=True)
    labels = sentence_features(examples, tokenizer, 8, ()).targets["labels"]
    assert labels.dtype == np.float32 and labels.tolist() == [5, -2.5]


NO_HEADER = TableFormat(kind="tsv", header=False)
BY_NUMBER = {"form": NO_HEADER, "first": "0", "label": "1"}


@pytest.mark.parametrize(
    "text, options, message",
    [
        (
            "sentence\tlabel\ngood\t0\nbad\t2\n",
            {"labels": ("0", "1")},
            "tsv:3: label '2' is not one of '0', '1'",
        ),
        ("sentence\tlabel\ngood\t4\nbad\tnan\n", {}, "tsv:3: label 'nan' is not a finite number"),
        ("sentence\tlabel\ngood\tx\nbad\ty\n", {}, "tsv:2: label 'x' is not a finite number"),
        (
            "sentence\tlabel\ngood\tx\n",
            {},
            "finite number, which is required because no labels are configured",
        ),
        ("sentence\tlabel\ngood\t\n", {"labels": ("0", "1")}, "tsv:2: label ''"),
        ("sentence\tlabel\n", {"labels": ("0", "1")}, "contains no rows"),
        (
            "sentence\tlabel\ngood\t0\nbad\t1\n",
            BY_NUMBER | {"labels": ("0", "1")},
            "tsv:1: label 'label' .*'0', '1'. All other rows have a valid label, .*header=True",
        ),
        ("sentence\tscore\ngood\t0.5\n", BY_NUMBER, "tsv:1: label 'score' is not .*header=True"),
        ("good\t0\nbad\t1\n", {"labels": ("0", "1")}, "no column .*'sentence'.*header=False"),
    ],
)  # fmt: skip
def test_errors_name_the_line_of_invalid_labels(
    tmp_path: Path, text: str, options, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read_sentences(files_of(tmp_path, text, **options), "train", labeled=True)


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "all empty"),
        ({"train": "a", "labels": ("x",)}, "at least two"),
        ({"train": "a", "labels": ("x", "x")}, "expected a tuple of distinct strings"),
        ({"train": "a", "labels": ("x", "y"), "label_names": ("z",)}, "1 label_names for 2"),
        ({"train": "a", "first": ""}, "first is empty"),
        ({"train": "a", "first": "label"}, "first and label are both column 'label'. Use"),
        ({"train": "a", "second": "sentence"}, "first and second are both column 'sentence'"),
        ({"train": "a", "first": "x", "label": "", "labels": ("x", "y")}, "and label 'x' are both"),
        ({"train": "a", "form": NO_HEADER, "first": "1", "label": "01"}, "both column '01'"),
        ({"test": "tfds:glue/cola"}, "this is the train split. .*such as tfds:glue/cola:test"),
        ({"validation": "tfds:glue/cola:train"}, "such as tfds:glue/cola:validation"),
    ],
)
def test_invalid_configurations_are_rejected(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SentenceFiles(**options)


def test_invalid_splits_and_lengths_are_rejected(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files = files_of(tmp_path, "sentence\nfilm\n")
    with pytest.raises(ValueError, match="test is not set. Set it to a file"):
        read_sentences(files, "test", labeled=False)
    with pytest.raises(ValueError, match="split='dev': expected 'train'"):
        read_sentences(files, "dev", labeled=False)  # type: ignore[arg-type]
    examples = read_sentences(files, "train", labeled=False)
    assert not sentence_features(examples, tokenizer, 3, ()).targets
    with pytest.raises(ValueError, match="max_length=2: expected at least 3"):
        sentence_features(examples, tokenizer, 2, ())
