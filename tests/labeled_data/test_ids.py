"""Ids of examples: those that predictions can be written under."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bert_jax.labeled_data.choices import ChoiceFiles, read_choices
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import Split
from bert_jax.labeled_data.sentences import SentenceFiles, read_sentences


def read_ids(path: Path, ids: list, task: str, split: Split) -> list[str]:
    rows = [{"i": each, "sentence": "a", "b": "b", "c": "c", "label": 1} for each in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    form = TableFormat(kind="jsonl")
    labelled = split != "test"
    if task == "choices":
        options = {"context": "sentence", "endings": ("b", "c"), "form": form, "index": "i"}
        return read_choices(
            ChoiceFiles(**{split: str(path)}, **options), split, labelled=labelled
        ).ids
    files = SentenceFiles(**{split: str(path)}, form=form, index="i")
    return read_sentences(files, split, labelled=labelled).ids


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize(
    ("task", "bad"),
    [("sentences", "\t"), ("sentences", "\n"), ("sentences", "\r"), ("choices", "\r")],
)
def test_an_id_that_breaks_the_lines_of_predictions(tmp_path: Path, task, bad, split) -> None:
    ids = ["u", f"x{bad}y"]
    with pytest.raises(ValueError) as told:
        read_ids(tmp_path / "f", ids, task, split)
    assert f"f:2: index {ids[1]!r}; expected none of" in str(told.value)
    assert read_ids(tmp_path / "f", ids, task, "train") == ids
    assert read_ids(tmp_path / "f", ["a,b", "c d"], task, split) == ["a,b", "c d"]


@pytest.mark.parametrize("task", ["sentences", "choices"])
def test_an_id_that_repeats_in_what_is_predicted(tmp_path: Path, task) -> None:
    ids = [7, 8, 7]
    with pytest.raises(ValueError, match="f:3: index '7' is that of .*f:1 too; expected one of"):
        read_ids(tmp_path / "f", ids, task, "test")
    assert read_ids(tmp_path / "f", ids, task, "validation") == ["7", "8", "7"]


def test_a_tab_in_csv_breaks_nothing(tmp_path: Path) -> None:
    assert read_ids(tmp_path / "f", ["x\ty"], "choices", "test") == ["x\ty"]
