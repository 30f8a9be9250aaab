"""Test reading multiple-choice files, and compare the features with Hugging Face's tokenizer."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from bert_jax.labeled_data.choices import ChoiceFiles, choice_features, read_choices, swag_files
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.tokenizers.tokenizer import Tokenizer

# The header line in SWAG's train.csv, whose first column has no name.
SWAG_HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)


def swag_rows(shared_data: Path) -> list[dict]:
    lines = (shared_data / "swag_sample/sample.json").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture
def swag(shared_data: Path, tmp_path: Path) -> str:
    with open(tmp_path / "train.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, SWAG_HEADER.split(","), restval="?")
        writer.writeheader()
        writer.writerows(swag_rows(shared_data))
    return str(tmp_path)


@pytest.mark.parametrize("max_length", [128, 20])
def test_swag_features_match_hugging_face(swag: str, shared_data: Path, max_length: int) -> None:
    files = swag_files(swag)
    examples = read_choices(files, "train", labeled=True)
    rows = swag_rows(shared_data)
    assert len(examples) == len(rows) == 10
    vocabulary = shared_data / "vocab/bert-base-uncased/vocab.txt"
    features = choice_features(
        examples, Tokenizer.load(vocabulary), max_length, files.choice_labels
    )
    assert features.sequences_per_example == 4
    assert features.targets["labels"].tolist() == [row["label"] for row in rows]
    # These are the pairs that examples/pytorch/multiple-choice/run_swag.py in transformers makes.
    expected = BertTokenizerFast(vocab=str(vocabulary))(
        [row["sent1"] for row in rows for _ in range(4)],
        [f"{row['sent2']} {row[f'ending{i}']}" for row in rows for i in range(4)],
        truncation=True,
        max_length=max_length,
        padding="max_length",
        return_tensors="np",
    )
    batch = features.batch(np.arange(10), max_length)
    for name, hf_name in [
        ("token_ids", "input_ids"),
        ("segment_ids", "token_type_ids"),
        ("attention_mask", "attention_mask"),
    ]:
        assert (batch[name] == expected[hf_name].reshape(10, 4, max_length)).all()


def test_choices_can_be_an_array_in_json_lines(shared_data: Path) -> None:
    files = ChoiceFiles(
        validation=str(shared_data / "csqa/valid.jsonl"),
        form=TableFormat(kind="jsonl"),
        context="question",
        endings=tuple(f"choices.{number}" for number in range(5)),
    )
    examples = read_choices(files, "validation", labeled=True)
    lines = (shared_data / "csqa/valid.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert len(examples) == 987
    assert examples.choices == [record["choices"] for record in records]
    assert examples.contexts == [record["question"] for record in records]
    tokenizer = Tokenizer.load(shared_data / "vocab/bert-base-uncased/vocab.txt")
    features = choice_features(examples, tokenizer, 64, files.choice_labels)
    assert len(features) == 987 and features.sequences_per_example == 5
    assert features.targets["labels"].tolist() == [record["label"] for record in records]


def test_columns_can_be_numbers_and_labels_letters(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join("[PAD] [UNK] [CLS] [SEP] [MASK] a b c".split()))
    path = tmp_path / "test.tsv"
    path.write_text("q1\ta\tb\tc\tB\nq2\tb\tc\ta\tA\n")
    files = ChoiceFiles(
        test=str(path),
        form=TableFormat(kind="tsv", header=False),
        context="1",
        endings=("2", "3"),
        label="4",
        index="0",
        labels=("A", "B"),
    )
    examples = read_choices(files, "test", labeled=True)
    assert examples.ids == ["q1", "q2"] and examples.choices == [["b", "c"], ["c", "a"]]
    features = choice_features(
        examples, Tokenizer.load(tmp_path / "vocab.txt"), 8, files.choice_labels
    )
    assert features.targets["labels"].tolist() == [1, 0]
    tokens = features.batch(np.array([0]), 8)["token_ids"].tolist()
    assert tokens == [[[2, 5, 3, 6, 3, 0, 0, 0], [2, 5, 3, 7, 3, 0, 0, 0]]]
    path.write_text("q1\ta\tb\tc\tC\n")
    with pytest.raises(ValueError, match=r"test\.tsv:1: label 'C' is not one of 'A', 'B'"):
        read_choices(files, "test", labeled=True)
    unlabeled = read_choices(files, "test", labeled=False)
    with pytest.raises(
        ValueError, match=r"test\.tsv:1: the example has 2 choices, but there are 3 labels"
    ):
        choice_features(unlabeled, Tokenizer.load(tmp_path / "vocab.txt"), 8, ("A", "B", "C"))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"endings": ("a",)}, r"endings=\('a',\): expected at least two distinct columns"),
        ({"endings": ("a", "a")}, r"endings=\('a', 'a'\): expected at least two distinct columns"),
        ({"endings": ("a", "b"), "labels": ("x", "y", "z")}, "3 labels for 2 endings"),
        ({"endings": ("a", "b"), "context": ""}, "context is empty"),
        ({"endings": ("a", "label")}, r"endings\[1\] and label are both column 'label'. Use"),
        ({"endings": ("a", "b"), "context": "label"}, "context and label are both"),
        ({"endings": ("a", "context")}, r"context and endings\[1\] are both"),
        ({"endings": ("a", "b"), "beginning": "b"}, r"beginning and endings\[1\] are both"),
    ],
)
def test_invalid_configurations_are_rejected(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ChoiceFiles(train="a", **options)
