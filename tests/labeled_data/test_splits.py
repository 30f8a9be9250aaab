"""Test which rows are held out for validation, and which are skipped because of their labels."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from bert_jax.labeled_data.choices import ChoiceFiles, read_choices
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.files import is_held_out
from bert_jax.labeled_data.sentences import SentenceExamples, SentenceFiles, read_sentences


def split(path: Path, name: str, **options) -> SentenceExamples:
    defaults = dict(first="text", labels=("a", "b"), validation_share=0.3)
    files = SentenceFiles(train=str(path), **(defaults | options))
    return read_sentences(files, name, labeled=True)  # type: ignore[arg-type]


def write(path: Path, texts: list[str]) -> Path:
    rows = (f"{text}\t{'ab'[len(text) % 2]}\n" for text in texts)
    path.write_text("text\tlabel\n" + "".join(rows))
    return path


def test_train_and_validation_are_parts_of_one_file(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(1_000)]
    path = write(tmp_path / "a.tsv", texts)
    train, validation = split(path, "train"), split(path, "validation")
    assert sorted(train.firsts + validation.firsts) == sorted(texts)
    # The tolerance is three standard deviations.
    assert len(validation) == pytest.approx(300, abs=45)
    assert [texts[int(i)] for i in validation.ids] == validation.firsts
    assert validation.locations[0] == f"{path}:{int(validation.ids[0]) + 2}"
    for share in (0.2, 0.1):  # A smaller fraction holds out a subset of the same rows.
        smaller = split(path, "validation", validation_share=share)
        assert 0 < len(smaller) < len(validation) and set(smaller.firsts) < set(validation.firsts)


def test_added_rows_do_not_move_others_and_duplicates_stay_together(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(100)]
    held_out = set(split(write(tmp_path / "a.tsv", texts), "validation").firsts)
    more = ["new text", *texts[::-1], *(text.upper() for text in texts), *texts]
    path = write(tmp_path / "b.tsv", more)
    validation = split(path, "validation").firsts
    assert {text for text in validation if text in texts} == held_out
    assert sorted(text.lower() for text in validation if text != "new text") == sorted(
        [*held_out] * 3
    )


def test_a_separate_validation_file_is_used_in_full(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", [f"text {number}" for number in range(50)])
    held_out = write(tmp_path / "b.tsv", ["one", "two"])
    assert len(split(path, "train", validation=str(held_out))) == 50
    assert split(path, "validation", validation=str(held_out)).firsts == ["one", "two"]
    with pytest.raises(ValueError, match="validation is not set. Set it to a file"):
        split(path, "validation", validation_share=0.0)


def test_pairs_are_held_out_by_both_texts() -> None:
    pairs = [(f"premise {number // 50}", f"hypothesis {number}") for number in range(100)]
    sides = [is_held_out(pair, 0.5) for pair in pairs]
    assert len({*sides[:50]}) == 2 == len({*sides[50:]})
    assert sides == [is_held_out((a.title(), f" {b}"), 0.5) for a, b in pairs]
    boundaries = [is_held_out(("a" * n, "a" * (20 - n)), 0.5) for n in range(1, 20)]
    assert len({*boundaries}) == 2


def test_the_hash_does_not_change() -> None:
    """Check that a run started with an earlier version resumes with the same held-out rows."""

    def blake(data: bytes) -> bytes:
        return hashlib.blake2b(data, digest_size=16).digest()

    for number in range(100):
        first, second = f"A  text {number}", "Another"
        parts = (b"folded" + blake(f"a text {number}".encode()), b"folded" + blake(b"another"))
        fraction = int(blake(b"".join(parts)).hex()[:16], 16) / 2**64
        assert is_held_out((first, second), 0.3) == (fraction < 0.3)


@pytest.mark.parametrize(("share", "use"), [(0.01, "validation"), (0.999, "training")])
def test_a_share_that_leaves_a_split_empty_is_rejected(
    tmp_path: Path, share: float, use: str
) -> None:
    path = write(tmp_path / "a.tsv", ["a", "b", "c", "d"])
    with pytest.raises(ValueError, match=f"leaves none of its 4 rows for {use}. Change it, or"):
        split(path, "validation" if use == "validation" else "train", validation_share=share)
    for invalid in (1.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"validation_share=.*: expected at least 0 and less"):
            split(path, "train", validation_share=invalid)


def test_rows_are_skipped_by_label_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\none\ta\ntwo\t-\nthree\tb\nfour\t-\nfive\t\n")
    examples = split(path, "train", validation_share=0.0, skip_labels=("-", ""))
    assert examples.firsts == ["one", "three"] and examples.ids == ["0", "2"]
    assert f"{path}: skipped 2 rows labeled '-'" in caplog.messages
    assert f"{path}: skipped 1 row labeled ''" in caplog.messages
    lines = tmp_path / "a.jsonl"
    rows = [{"text": "one", "label": "a"}, {"text": "two", "label": None}, {"text": "three"}]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    examples = split(lines, "train", validation_share=0.0, skip_labels=("",))
    assert examples.firsts == ["one"]
    assert f"{lines}: skipped 2 rows labeled ''" in caplog.messages
    with pytest.raises(ValueError, match=r"a.jsonl:2: column 'label' is null, a JSON null"):
        split(lines, "train", validation_share=0.0)
    several = split(
        path, "train", validation_share=0.0, skip_labels=("-",), separator="|", labels=("a", "b")
    )
    assert several.firsts == ["one", "three", "five"]


def test_choices_are_skipped_by_label(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("context,e0,e1,label\nc,a,b,0\nd,a,b,-1\ne,a,b,1\n")
    options = dict(endings=("e0", "e1"), form=TableFormat(kind="csv"))
    files = ChoiceFiles(train=str(path), skip_labels=("-1",), **options)  # type: ignore[arg-type]
    assert read_choices(files, "train", labeled=True).contexts == ["c", "e"]
    test = ChoiceFiles(test=str(path), skip_labels=("-1",), **options)  # type: ignore[arg-type]
    assert len(read_choices(test, "test", labeled=False)) == 3
    with pytest.raises(ValueError, match="'1' is also one of the labels"):
        ChoiceFiles(train="a", skip_labels=("1",), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"skip_labels": ("a",)}, "'a' is also one of the labels"),
        ({"skip_labels": ("-",), "label": ""}, "but label=''"),
    ],
)
def test_invalid_skip_labels_are_rejected(options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SentenceFiles(train="a.tsv", labels=("a", "b"), **options)


def test_a_file_with_only_skipped_rows_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("text\tlabel\none\t-\ntwo\t-\n")
    with pytest.raises(ValueError, match="no rows are left after skipping the labels '-'"):
        split(path, "train", skip_labels=("-",))
