"""Test that example IDs can be written to prediction files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_jax.labeled_data.choices import ChoiceFiles, read_choices
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.sentences import SentenceFiles, read_sentences


def read_ids(path: Path, ids: list, task: str, split: Split) -> list[str]:
    rows = [{"i": x, "sentence": "a", "b": "b", "c": "c", "label": 1} for x in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = TableFormat(kind="jsonl")
    labeled = split != "test"
    if task == "choices":
        options = {"context": "sentence", "endings": ("b", "c"), "form": form, "index": "i"}
        return read_choices(
            ChoiceFiles(**{split: str(path)}, **options), split, labeled=labeled
        ).ids
    files = SentenceFiles(**{split: str(path)}, form=form, index="i")
    return read_sentences(files, split, labeled=labeled).ids


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("task", "bad"),
    [("sentences", "\t"), ("sentences", "\n"), ("sentences", "\r"), ("choices", "\r")],
)
def test_ids_that_would_corrupt_predictions_are_rejected(tmp_path: Path, task, bad, split) -> None:
    ids = ["u", f"x{bad}y"]
    with pytest.raises(ValueError) as error:
        read_ids(tmp_path / "f", ids, task, split)
    assert f"f:2: index {ids[1]!r} contains one of" in str(error.value)
    assert read_ids(tmp_path / "f", ids, task, "train") == ids
    assert read_ids(tmp_path / "f", ["a,b", "c d"], task, split) == ["a,b", "c d"]


@pytest.mark.parametrize("task", ["sentences", "choices"])
def test_repeated_ids_of_a_test_set_are_rejected(tmp_path: Path, task) -> None:
    ids = [7, 8, 7]
    message = "f:3: index '7' is also used by .*f:1, but each row needs a unique index"
    with pytest.raises(ValueError, match=message):
        read_ids(tmp_path / "f", ids, task, "test")
    assert read_ids(tmp_path / "f", ids, task, "validation") == ["7", "8", "7"]


def test_ids_of_choices_may_contain_tabs(tmp_path: Path) -> None:
    assert read_ids(tmp_path / "f", ["x\ty"], "choices", "test") == ["x\ty"]
