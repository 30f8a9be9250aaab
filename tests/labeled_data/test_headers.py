"""Test that an unexpected header is detected, even if labels are not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from bert_jax.labeled_data.choices import ChoiceFiles, read_choices
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.sentences import SentenceFiles, read_sentences

NO_HEADER = TableFormat(kind="csv", header=False)
CLASS = {"labels": ("bad", "good")}
NUMBER: dict = {}
SETS = {"labels": ("bad", "good"), "separator": "|"}
BOOLEANS = {"labels": ("1", "2"), "label": ""}


def texts_of(path: Path, text: str, options: dict) -> list[str]:
    path.write_text(text)
    named = {"label": "1"} | options
    files = SentenceFiles(test=str(path), form=NO_HEADER, first="0", **named)
    return read_sentences(files, "test", labeled=False).firsts


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("text,label\nwhat a film,\nugh,\n", CLASS),
        ("text,label\nwhat a film,?\nugh,?\n", CLASS),
        ("text,label\nwhat a film,good\nugh,bad\n", CLASS),
        ("text,label\nwhat a film,-1\n", CLASS),
        ("text,label\nwhat a film\nugh\n", CLASS),
        ("text,score\nwhat a film,0.5\nugh,1\n", NUMBER),
        ("text,labels\nwhat a film,good|bad\nugh,\n", SETS),
        ("text,bad,good\nwhat a film,true,1\nugh,false,0\n", BOOLEANS),
    ],
)
def test_an_unexpected_header_is_rejected(tmp_path: Path, text: str, options: dict) -> None:
    word = text.split("\n")[0].split(",")[1]
    with pytest.raises(ValueError, match=f"f:1: '{word}' in the label column, 1, is not a label"):
        texts_of(tmp_path / "f", text, options)
    assert texts_of(tmp_path / "f", text.split("\n", 1)[1], options)[0] == "what a film"


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("text\nwhat a film\nugh\n", CLASS),  # The table has no label column.
        ("text,label\n", CLASS),
        ("fine,good\nugh,bad\n", CLASS),
        ("fine,web\nugh,news\nso so,\n", CLASS),  # The second column does not contain the label.
        ("fine,\nugh,unsure\n", CLASS),
        ("fine,7\nugh,8\n", CLASS),
        ("fine,1e3\nugh,2\n", NUMBER),
        ("fine,good|bad\nugh,[]\n", SETS),
        ("fine,True,0\nugh,0,0\n", BOOLEANS),
        ("fine,label\nugh,\n", {"label": "label"}),  # A test set does not need a label column.
    ],
)
def test_a_possible_example_is_not_a_header(tmp_path: Path, text: str, options: dict) -> None:
    assert len(texts_of(tmp_path / "f", text, options)) == text.count("\n")


def test_an_unexpected_header_of_choices_is_rejected(tmp_path: Path) -> None:
    files = ChoiceFiles(
        test=str(path := tmp_path / "f"),
        form=NO_HEADER,
        context="0",
        endings=("1", "2"),
        label="3",
    )
    path.write_text("context,a,b,answer\nx,y,z,1\nx,y,z,\n")
    with pytest.raises(ValueError, match="f:1: 'answer' in the label column, 3, is not a label"):
        read_choices(files, "test", labeled=False)
    path.write_text("x,y,z,1\nx,y,z,\n")
    assert len(read_choices(files, "test", labeled=False)) == 2
