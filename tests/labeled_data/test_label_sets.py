"""Test rows with multiple labels: a delimited field, a JSON array or one column per label."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_jax.labeled_data.choices import ChoiceFiles
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.sentences import SentenceFiles, read_sentences, sentence_features
from bert_jax.labeled_data.tags import TagFiles
from bert_jax.tokenizers.tokenizer import Tokenizer

LABELS = ("toxic", "insult", "3")
EXPECTED = [frozenset({"toxic", "3"}), frozenset(), frozenset({"insult"})]


def read(path: Path, text: str, kind: str, **options):
    path.write_text(text)
    files = SentenceFiles(
        train=str(path), first="t", labels=LABELS, form=TableFormat(kind=kind), **options
    )
    return read_sentences(files, "train", labeled=True)


def test_all_formats_are_equivalent(tmp_path: Path) -> None:
    rows = [{"t": "a", "l": ["toxic", 3]}, {"t": "b", "l": []}, {"t": "c", "l": ["insult"]}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    columns = "t,toxic,3,insult\na,1,true,0\nb,0,false,False\nc,0.0,0,1.0\n"
    for text, kind, options in (
        ("t\tl\na\ttoxic|3\nb\t\nc\t insult \n", "tsv", {"label": "l", "separator": "|"}),
        ('t,l\na,"3, toxic"\nb,\nc,insult\n', "csv", {"label": "l", "separator": ","}),
        ('t\tl\na\t["toxic", 3]\nb\t[]\nc\t["insult"]\n', "tsv",
         {"label": "l", "separator": ","}),
        (lines, "jsonl", {"label": "l", "separator": ","}),
        (columns, "csv", {"label": ""}),
    ):  # fmt: skip
        examples = read(tmp_path / "f", text, kind, **options)
        assert examples.label_sets == EXPECTED and examples.labels is None, (kind, options)


def test_targets_are_indicators(tmp_path: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    tokenizer = Tokenizer.load(tmp_path / "vocab.txt")
    text = "t\tl\na\ttoxic|3\nb\t\nc\tinsult\n"
    examples = read(tmp_path / "f", text, "tsv", label="l", separator="|")
    targets = sentence_features(examples, tokenizer, 8, LABELS).targets
    assert targets["labels"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("t\tl\na\ttoxic|rude\n", {"label": "l", "separator": "|"}, "f:2: label 'rude'"),
        ("t\tl\na\ttoxic||3\n", {"label": "l", "separator": "|"}, "f:2: label ''"),
        ("t\tl\na\t['toxic']\n", {"label": "l", "separator": "|"}, "f:2: labels .*JSON array"),
        (
            f"t\tl\na\t{'[' * 100_000}\n",
            {"label": "l", "separator": "|"},
            "f:2: labels .* are not a JSON array",
        ),
        (
            "t\tl\na\t[null]\n",
            {"label": "l", "separator": "|"},
            "f:2: the array of labels .*strings and num",
        ),
        ("t\ttoxic\t3\tinsult\na\t1\t2\t0\n", {"label": ""}, "f:2: column '3' contains '2'"),
        ("t\ttoxic\t3\na\t1\t1\n", {"label": ""}, "f:1: no column is named 'insult'"),
        ("", {"label": "", "separator": "|"}, r"separator='\|', but label=''"),
        ("", {"label": "l", "separator": "i"}, "separator='i': a label contains the separator"),
    ],
)
def test_invalid_labels_are_rejected(
    tmp_path: Path, text: str, options: dict, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "f", text, "tsv", **options)


def test_several_labels_must_be_listed() -> None:
    with pytest.raises(ValueError, match=r"labels=\(\): examples may have several labels, so all"):
        SentenceFiles(train="f", label="")


def test_a_label_may_begin_with_a_bracket(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text('t\tl\na\t[now]|spam\nb\t["spam"]\n')
    files = SentenceFiles(
        train=str(path), first="t", label="l", labels=("[now]", "spam"), separator="|"
    )
    examples = read_sentences(files, "train", labeled=True)
    assert examples.label_sets == [frozenset({"[now]", "spam"}), frozenset({"spam"})]


def test_an_invalid_label_after_a_label_with_a_bracket_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("t\tl\na\t[now]|spm\n")
    files = SentenceFiles(
        train=str(path), first="t", label="l", labels=("[now]", "spam"), separator="|"
    )
    with pytest.raises(ValueError, match="f.tsv:2: label 'spm'"):
        read_sentences(files, "train", labeled=True)


def test_labels_that_would_corrupt_predictions_are_rejected() -> None:
    for label in ("very\tgood", "bad\n"):
        with pytest.raises(ValueError, match="contains a tab or a line break"):
            SentenceFiles(train="f", label="l", labels=(label, "fair"))


@pytest.mark.parametrize("files", [SentenceFiles, ChoiceFiles, TagFiles])
@pytest.mark.parametrize("labels", [("a", ""), (" ", "a")])
def test_empty_labels_are_rejected(files, labels) -> None:
    """Reject empty labels, because a predicted empty label looks like a missing prediction."""
    with pytest.raises(ValueError, match=r"labels=\(.*\): contains an empty name"):
        files(train="x", labels=labels)
