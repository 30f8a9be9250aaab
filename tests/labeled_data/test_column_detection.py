"""Columns and labels are detected in typical tables, and ambiguous tables are refused."""

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
    """Return rows of a text, a label and other columns: values, or functions of the row number."""
    usual = {"text": review, "label": lambda number: ("bad", "good")[number % 2]}
    return [
        {name: x(number) if callable(x) else x for name, x in (usual | columns).items()}
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
    path: Path | str, split: str = "train", model_labels=None, **given: Any
) -> SentenceFiles:
    auto = dict(first="auto", second="auto", label="auto", labels=("auto",))
    files = SentenceFiles(**{split: str(path)}, **(auto | given))
    return detect_columns(files, split, model_labels)  # type: ignore[arg-type]


def columns(files: SentenceFiles) -> tuple[str, str, str, tuple[str, ...]]:
    return files.first, files.second, files.label, files.labels


def renamed(rows: list[Row], **names: str) -> list[Row]:
    return [{names.get(name, name): x for name, x in row.items()} for row in rows]


BOTH = ("bad", "good")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (reviews(), ("text", "", "label", BOTH)),
        (reviews(id=int, title="A title of it"), ("text", "", "label", BOTH)),
        (reviews(label_text="good"), ("text", "", "label", BOTH)),
        (renamed(reviews(), text="Review", label="Sentiment"), ("Review", "", "Sentiment", BOTH)),
        (renamed(reviews(), text="what", label="it is"), ("what", "", "it is", BOTH)),
        (
            renamed(reviews(id=int, by=lambda n: f"Ada Lovelace {n}", on="2024-01-01"), text="x"),
            ("x", "", "label", BOTH),
        ),
        (reviews(label=lambda n: n % 12), ("text", "", "label", tuple(map(str, range(12))))),
        (reviews(label=lambda n: f"{n % 2}.0"), ("text", "", "label", ("0.0", "1.0"))),
        (reviews(label=lambda n: n % 3 - 1), ("text", "", "label", ("-1", "0", "1"))),
        (reviews(label=lambda n: n / 8), ("text", "", "label", ())),
        (reviews(label=lambda n: str(n / 8) if n else "0.00"), ("text", "", "label", ())),
        (
            renamed(reviews(second=review), text="premise", second="hypothesis"),
            ("premise", "hypothesis", "label", BOTH),
        ),
        (
            renamed(reviews(b="yes", idx=int), text="Sentence 1", b="Sentence 2"),
            ("Sentence 1", "Sentence 2", "label", BOTH),
        ),
        (
            renamed(reviews(b=review), text="question", b="sentence"),
            ("question", "sentence", "label", BOTH),
        ),
        (reviews(text=lambda n: f"\u6771\u4eac\u306f{n}"), ("text", "", "label", BOTH)),
        (
            renamed(reviews(text=lambda n: f"\u6771\u4eac\u306f{n}", id=str), text="x"),
            ("x", "", "label", BOTH),
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
        (renamed(reviews(text=int), text="a"), "no column seems to hold text"),
        (reviews(label="good"), "every label in the label column 'label' is 'good'; expected"),
        (reviews(label=lambda n: f"id-{n}"), "40 different values in 40 rows, too many for cl"),
        (
            reviews(label=lambda n: f"{n % 9},{n}"),
            "as '0,0', seem to be numbers with decimal com",
        ),
        (reviews(label=int), "40 different numbers, which could be numbers to predict or classes"),
        (reviews(label=lambda n: n % 2 / 4), "has 2 different numbers, which could be numbers to"),
        (
            reviews(label=lambda n: "ab-"[n % 3]),
            r"'-' in .* \(13 rows\) often stands for a missing",
        ),
        (reviews(label=lambda n: n % 4 - 1), r"'-1' in .* \(10 rows\) often stands for a missing"),
        (reviews(label=lambda n: "a" * (n != 3)), r"csv:5: no label in .* as in 1 of 40 rows"),
        (reviews(label=lambda n: ("a", "b", "A")[n % 3]), "'A' and 'a' in .* the same label"),
        (reviews(label=lambda n: ("1", "1.0")[n % 2]), "'1' and '1.0' in .* the same label"),
    ],
)
def test_ambiguous_tables_are_refused(tmp_path: Path, rows, message: str) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        detected(write_csv(tmp_path / "a.csv", rows))
    assert str(tmp_path / "a.csv") in str(refused.value)
    assert "sentences.files." in str(refused.value)


PAIR = ("sentence1", "sentence2")
OF_NLI = ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("mnli/train_part1k.jsonl", ("premise", "hypothesis", "label", OF_NLI)),
        ("mnli/kshot16-42_train.original_format.tsv", (*PAIR, "gold_label", OF_NLI)),
        ("glue/SST-2/dev.tsv", ("sentence", "", "label", ("0", "1"))),
        ("glue/RTE/train.tsv", (*PAIR, "label", ("entailment", "not_entailment"))),
        ("glue/STS-B/train.tsv", (*PAIR, "score", ())),
    ],
)
def test_columns_of_public_files(shared_data: Path, file: str, expected) -> None:
    assert columns(detected(shared_data / file)) == expected


def test_given_columns_are_kept(tmp_path: Path) -> None:
    rows = reviews(review=review, target=lambda n: "xyz"[n % 3])
    path = write_csv(tmp_path / "a.csv", rows)
    assert columns(detected(path, first="review", label="label")) == ("review", "", "label", BOTH)
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
    nothing = SentenceFiles(train="nowhere.csv")
    assert detect_columns(nothing) is nothing


def test_skipped_labels_are_not_labels(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(label=lambda n: ("a", "-", "b", "")[n % 4]))
    assert detected(path, skip_labels=("-", "")).labels == ("a", "b")
    with pytest.raises(ValueError, match="a.csv:5: no label in"):
        detected(path, skip_labels=("-",))
    path = write_csv(tmp_path / "b.csv", reviews(label=lambda n: n / 8 if n % 2 else "-"))
    with pytest.raises(ValueError, match="20 different numbers"):
        detected(path, skip_labels=("-",))


def test_the_first_example_is_not_read_as_a_header(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(), header=False)
    with pytest.raises(ValueError, match="'bad' is also a value.*form.header=False"):
        detected(path)
    bare = detected(path, form=TableFormat(header=False))
    assert columns(bare) == ("0", "", "1", BOTH)
    assert len(read_sentences(bare, "train", labelled=True)) == 40


def test_a_label_that_the_model_lacks_is_named(tmp_path: Path) -> None:
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


def test_a_byte_order_mark_and_line_feeds_in_quotes(tmp_path: Path) -> None:
    rows = reviews(text=lambda n: f'a "film",\nsaid {review(n)}')
    path = write_csv(tmp_path / "a.csv", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    found = detected(path)
    assert columns(found) == ("text", "", "label", BOTH)
    assert read_sentences(found, "train", labelled=True).firsts == [row["text"] for row in rows]


def test_json_lines_may_lack_fields_and_hold_lists(tmp_path: Path) -> None:
    rows = reviews(tags=lambda n: ["a", "b"])
    del rows[0]["tags"], rows[7]["label"]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match="a.jsonl:8: no label in"):
        detected(path)
    found = detected(path, skip_labels=("",))
    assert columns(found) == ("text", "", "label", BOTH)
    assert len(read_sentences(found, "train", labelled=True)) == 39
    with pytest.raises(ValueError, match="holds lists. If a row can have several"):
        detected(path, label="tags")


def test_an_existing_models_labels_are_used_if_they_fit(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", reviews(label="good"))
    assert detected(path, model_labels=("good", "bad")).labels == ("good", "bad")
    assert detected(path, model_labels=()).labels == ()
    path = write_csv(tmp_path / "b.csv", reviews())
    assert detected(path, model_labels=("BAD", "GOOD")).labels == BOTH
    texts = write_csv(tmp_path / "c.csv", [{"id": n, "text": review(n)} for n in range(9)])
    test = detected(texts, "test", model_labels=BOTH)
    assert columns(test) == ("text", "", "label", BOTH)
    assert len(read_sentences(test, "test", labelled=False)) == 9


def test_the_detected_columns_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = write_csv(tmp_path / "a.csv", reviews(id=int))
    detected(path)
    assert "text in 'text', label in 'label' (2 classes: 'bad', 'good'); not used: 'id'" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"separator": "|"}, "cannot be detected with label_names or"),
        ({"label": ""}, "cannot be detected with label_names or"),
        ({"label_names": ("x", "y")}, "labels cannot be detected"),
        ({"train": "tfds:imdb_reviews"}, "columns are detected only in files"),
        ({"train": ""}, "files.train is not set"),
        ({"train": "nowhere.csv"}, "nowhere.csv does not exist"),
    ],
)
def test_configs_without_detection(given: dict[str, Any], message: str) -> None:
    auto = dict(first="auto", second="auto", label="auto", labels=("auto",))
    with pytest.raises(ValueError, match=message):
        detect_columns(SentenceFiles(**({"train": "a.csv", "test": "b.csv"} | auto | given)))


def test_reading_requires_detected_columns() -> None:
    with pytest.raises(ValueError, match="call detect_columns first"):
        read_sentences(SentenceFiles(train="a.csv", first="auto"), "train", labelled=True)
