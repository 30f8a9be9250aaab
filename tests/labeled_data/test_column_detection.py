"""Test detecting columns and labels in typical tables, and rejecting ambiguous tables."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bert_jax.labeled_data.column_detection import detect_columns
from bert_jax.labeled_data.delimited import TableFormat
from bert_jax.labeled_data.sentences import SentenceFiles, read_sentences

Row = dict[str, Any]


def review(number: int) -> str:
    return f"A film, number {number}, that one of us liked and the other did not."


def reviews(count: int = 40, **columns: Any) -> list[Row]:
    """Return rows that have a text, a label and the given columns.

    columns: the value in each column, or a function that computes it from the row number.
    """
    defaults = {"text": review, "label": lambda number: ("bad", "good")[number % 2]}
    return [
        {name: x(number) if callable(x) else x for name, x in (defaults | columns).items()}
        for number in range(count)
    ]


def write_csv(path: Path, rows: list[Row], delimiter: str = ",", *, header: bool = True) -> Path:
    content = io.StringIO()
    writer = csv.DictWriter(content, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    if header:
        writer.writeheader()
    writer.writerows(rows)
    path.write_text(content.getvalue(), encoding="utf-8")
    return path


def detected(
    path: Path | str, split: str = "train", model_labels=None, **options: Any
) -> SentenceFiles:
    auto = dict(first="auto", second="auto", label="auto", labels=("auto",))
    files = SentenceFiles(**{split: str(path)}, **(auto | options))
    return detect_columns(files, split, model_labels)  # type: ignore[arg-type]


def columns(files: SentenceFiles) -> tuple[str, str, str, tuple[str, ...]]:
    return files.first, files.second, files.label, files.labels


def renamed(rows: list[Row], **names: str) -> list[Row]:
    return [{names.get(name, name): x for name, x in row.items()} for row in rows]


LABELS = ("bad", "good")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (reviews(), ("text", "", "label", LABELS)),
        (reviews(id=int, title="A title of it"), ("text", "", "label", LABELS)),
        (reviews(label_text="good"), ("text", "", "label", LABELS)),
        (renamed(reviews(), text="Review", label="Sentiment"), ("Review", "", "Sentiment", LABELS)),
        (renamed(reviews(), text="what", label="it is"), ("what", "", "it is", LABELS)),
        (
            renamed(reviews(id=int, by=lambda n: f"Ada Lovelace {n}", on="2024-01-01"), text="x"),
            ("x", "", "label", LABELS),
        ),
        (reviews(label=lambda n: n % 12), ("text", "", "label", tuple(map(str, range(12))))),
        (reviews(label=lambda n: f"{n % 2}.0"), ("text", "", "label", ("0.0", "1.0"))),
        (reviews(label=lambda n: n % 3 - 1), ("text", "", "label", ("-1", "0", "1"))),
        (reviews(label=lambda n: n / 8), ("text", "", "label", ())),
        (reviews(label=lambda n: str(n / 8) if n else "0.00"), ("text", "", "label", ())),
        (
            renamed(reviews(second=review), text="premise", second="hypothesis"),
            ("premise", "hypothesis", "label", LABELS),
        ),
        (
            renamed(reviews(b="yes", idx=int), text="Sentence 1", b="Sentence 2"),
            ("Sentence 1", "Sentence 2", "label", LABELS),
        ),
        (
            renamed(reviews(b=review), text="question", b="sentence"),
            ("question", "sentence", "label", LABELS),
        ),
        (reviews(text=lambda n: f"\u6771\u4eac\u306f{n}"), ("text", "", "label", LABELS)),
        (
            renamed(reviews(text=lambda n: f"\u6771\u4eac\u306f{n}", id=str), text="x"),
            ("x", "", "label", LABELS),
        ),
    ],
)
def test_columns_are_detected_by_name_and_then_by_content(tmp_path: Path, rows, expected) -> None:
    assert columns(detected(write_csv(tmp_path / "a.csv", rows))) == expected
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert columns(detected(lines)) == expected
    assert columns(detected(write_csv(tmp_path / "a.tsv", rows, "\t"))) == expected
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert columns(detected(tmp_path / "a.parquet")) == expected


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (reviews(review=review), "'text' and 'review' could each be the text"),
        (reviews(target="x"), "'label' and 'target' could each be the label"),
        (renamed(reviews(b=review), text="a"), "'a' and 'b' could each be the text"),
        (reviews(question=review, answer=review), "'question' and 'answer' and 'text' could each"),
        (renamed(reviews(b=lambda n: n % 3), label="a"), "'a' and 'b' could each be the label"),
        (renamed(reviews(label=int), label="a"), "no column seems to be the label"),
        (renamed(reviews(text=int), text="a"), "no column seems to contain text"),
        (
            reviews(label="good"),
            "every label in the label column 'label' is 'good', but at least two",
        ),
        (reviews(label=lambda n: f"id-{n}"), "40 distinct values in 40 rows, too many to be cl"),
        (
            reviews(label=lambda n: f"{n % 9},{n}"),
            "as '0,0', seem to be numbers with decimal com",
        ),
        (reviews(label=int), "40 distinct numbers, which could be numbers to predict or classes"),
        (reviews(label=lambda n: n % 2 / 4), "has 2 distinct numbers, which could be numbers to"),
        (
            reviews(label=lambda n: "ab-"[n % 3]),
            r"'-' in .* \(13 rows\) often stands for a missing",
        ),
        (reviews(label=lambda n: n % 4 - 1), r"'-1' in .* \(10 rows\) often stands for a missing"),
        (
            reviews(label=lambda n: "a" * (n != 3)),
            r"csv:5: no label in .* is empty in 1 of 40 rows",
        ),
        (reviews(label=lambda n: ("a", "b", "A")[n % 3]), "'A' and 'a' in .* the same label"),
        (reviews(label=lambda n: ("1", "1.0")[n % 2]), "'1' and '1.0' in .* the same label"),
    ],
)
def test_ambiguous_tables_are_rejected(tmp_path: Path, rows, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        detected(write_csv(tmp_path / "a.csv", rows))
    assert str(tmp_path / "a.csv") in str(error.value)
    assert "sentences.files." in str(error.value)


PAIR = ("sentence1", "sentence2")
NLI_LABELS = ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("mnli/train_part1k.jsonl", ("premise", "hypothesis", "label", NLI_LABELS)),
        ("mnli/kshot16-42_train.original_format.tsv", (*PAIR, "gold_label", NLI_LABELS)),
        ("glue/SST-2/dev.tsv", ("sentence", "", "label", ("0", "1"))),
        ("glue/RTE/train.tsv", (*PAIR, "label", ("entailment", "not_entailment"))),
        ("glue/STS-B/train.tsv", (*PAIR, "score", ())),
    ],
)
def test_columns_of_public_datasets_are_detected(shared_data: Path, file: str, expected) -> None:
    assert columns(detected(shared_data / file)) == expected


def test_given_columns_are_kept(tmp_path: Path) -> None:
    rows = reviews(review=review, target=lambda n: "xyz"[n % 3])
    path = write_csv(tmp_path / "a.csv", rows)
    assert columns(detected(path, first="review", label="label")) == ("review", "", "label", LABELS)
    assert columns(detected(path, first="text", second="review", label="target")) == (
        *("text", "review", "target"),
        ("x", "y", "z"),
    )
    named = detected(path, first="text", labels=("z", "y", "x"), label="target")
    assert columns(named) == ("text", "", "target", ("z", "y", "x"))
    plain = write_csv(tmp_path / "b.csv", renamed(rows, label="a", target="b"))
    assert columns(detected(plain, first="text", labels=("x", "y", "z", "w")))[2] == "b"
    pair = write_csv(tmp_path / "c.csv", renamed(rows, text="question", review="answer"))
    single = detected(pair, label="label", second="answer")
    assert columns(single)[:2] == ("question", "answer")
    numbers = write_csv(tmp_path / "d.csv", reviews(label=int))
    assert columns(detected(numbers, labels=()))[3] == ()
    assert columns(detected(numbers, labels=("classes",)))[3] == tuple(map(str, range(40)))
    no_detection = SentenceFiles(train="nowhere.csv")
    assert detect_columns(no_detection) is no_detection


def test_skipped_labels_are_not_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(label=lambda n: ("a", "-", "b", "")[n % 4]))
    assert detected(path, skip_labels=("-", "")).labels == ("a", "b")
    with pytest.raises(ValueError, match="a.csv:5: no label in"):
        detected(path, skip_labels=("-",))
    path = write_csv(tmp_path / "b.csv", reviews(label=lambda n: n / 8 if n % 2 else "-"))
    with pytest.raises(ValueError, match="20 distinct numbers"):
        detected(path, skip_labels=("-",))


def test_the_first_example_is_not_read_as_a_header(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(), header=False)
    with pytest.raises(ValueError, match="'bad' is also a value.*form.header=False"):
        detected(path)
    bare = detected(path, form=TableFormat(header=False))
    assert columns(bare) == ("0", "", "1", LABELS)
    assert len(read_sentences(bare, "train", labeled=True)) == 40


def test_a_label_that_is_not_in_the_model_is_reported(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(label=lambda n: str(n % 4)))
    message = r"a.csv: '3' in the label column 'label' is not one of the model's .*=\"\('3',\)"
    with pytest.raises(ValueError, match=message):
        detected(path, "validation", ("0", "1", "2", "5"))
    files = detected(path, "validation", ("0", "1", "2", "5"), skip_labels=("3",))
    assert files.labels == ("0", "1", "2", "5")


def test_another_delimiter_is_suggested(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(), ";")
    path.write_text(path.read_text().replace(",", ""))
    with pytest.raises(ValueError, match=r"Its columns are 'text;label' .* form.delimiter=.;."):
        detected(path)
    assert columns(detected(path, form=TableFormat(delimiter=";")))[0] == "text"


def test_byte_order_marks_and_quoted_line_feeds_are_handled(tmp_path: Path) -> None:
    rows = reviews(text=lambda n: f'a "film",\nsaid {review(n)}')
    path = write_csv(tmp_path / "a.csv", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    files = detected(path)
    assert columns(files) == ("text", "", "label", LABELS)
    assert read_sentences(files, "train", labeled=True).firsts == [row["text"] for row in rows]


def test_json_lines_may_have_missing_fields_and_lists(tmp_path: Path) -> None:
    rows = reviews(tags=lambda n: ["a", "b"])
    del rows[0]["tags"], rows[7]["label"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="a.jsonl:8: no label in"):
        detected(path)
    files = detected(path, skip_labels=("",))
    assert columns(files) == ("text", "", "label", LABELS)
    assert len(read_sentences(files, "train", labeled=True)) == 39
    with pytest.raises(ValueError, match="contains lists. If rows can have several"):
        detected(path, label="tags")


def test_labels_of_an_existing_model_are_used_if_they_match(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(label="good"))
    assert detected(path, model_labels=("good", "bad")).labels == ("good", "bad")
    assert detected(path, model_labels=()).labels == ()
    path = write_csv(tmp_path / "b.csv", reviews())
    assert detected(path, model_labels=("BAD", "GOOD")).labels == LABELS
    texts = write_csv(tmp_path / "c.csv", [{"id": n, "text": review(n)} for n in range(9)])
    test = detected(texts, "test", model_labels=LABELS)
    assert columns(test) == ("text", "", "label", LABELS)
    assert len(read_sentences(test, "test", labeled=False)) == 9


def test_the_detected_columns_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = write_csv(tmp_path / "a.csv", reviews(id=int))
    detected(path)
    assert "text in 'text', label in 'label' (2 classes: 'bad', 'good'); not used: 'id'" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"separator": "|"}, "cannot be detected when label_names is set or"),
        ({"label": ""}, "cannot be detected when label_names is set or"),
        ({"label_names": ("x", "y")}, "labels cannot be detected"),
        ({"train": "tfds:imdb_reviews"}, "columns are detected only in files"),
        ({"train": ""}, "files.train is not set"),
        ({"train": "nowhere.csv"}, "nowhere.csv: no such file"),
    ],
)
def test_unsupported_detection_is_rejected(options: dict[str, Any], message: str) -> None:
    auto = dict(first="auto", second="auto", label="auto", labels=("auto",))
    with pytest.raises(ValueError, match=message):
        detect_columns(SentenceFiles(**({"train": "a.csv", "test": "b.csv"} | auto | options)))


def test_reading_requires_detected_columns() -> None:
    with pytest.raises(ValueError, match="Call detect_columns first"):
        read_sentences(SentenceFiles(train="a.csv", first="auto"), "train", labeled=True)
