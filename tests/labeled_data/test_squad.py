"""Test reading questions and answers from SQuAD files, and rejecting malformed files."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from bert_jax.labeled_data.squad import SpanExample, read_squad

CONTEXT = "  Ada Lovelace wrote the first program in 1843. "


def squad(*answers: tuple[Any, Any], **changes: Any) -> dict[str, Any]:
    entries = [{"text": text, "answer_start": start} for text, start in answers]
    question = {"id": "q1", "question": "Who wrote it?", "answers": entries} | changes
    paragraphs = [{"context": CONTEXT, "qas": [question]}]
    return {"version": "1.1", "data": [{"title": "Ada", "paragraphs": paragraphs}]}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "squad.json"


def test_questions_are_read_with_their_answers(file: Path) -> None:
    write(file, squad(("Ada Lovelace", 2), ("Lovelace", 6)))
    expected = SpanExample(
        "q1", "Who wrote it?", CONTEXT, "Ada", ("Ada Lovelace", "Lovelace"), (2, 6)
    )
    assert read_squad(file, labeled=True) == [expected]
    unlabeled = SpanExample("q1", "Who wrote it?", CONTEXT, "Ada")
    assert read_squad(file, labeled=False) == [unlabeled]


def test_test_sets_need_no_answers(file: Path) -> None:
    content = squad()
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    assert read_squad(write(file, content), labeled=False)[0].answer_texts == ()
    message = r"squad.json: data\[0\].paragraphs\[0\].qas\[0\]: the key 'answers', which SQuAD"
    with pytest.raises(ValueError, match=message):
        read_squad(file, labeled=True)


@pytest.mark.parametrize("suffix, compress", [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_compressed_files_are_read_and_damaged_ones_rejected(
    tmp_path: Path, suffix: str, compress
) -> None:
    content = compress(json.dumps(squad(("Ada", 2))).encode())
    intact, half = tmp_path / f"intact.json{suffix}", tmp_path / f"half.json{suffix}"
    intact.write_bytes(content)
    half.write_bytes(content[: len(content) // 2])
    assert read_squad(intact, labeled=True)[0].answer_texts == ("Ada",)
    with pytest.raises(ValueError, match=rf"half.json{suffix}: .* truncated or damaged"):
        read_squad(half, labeled=True)


@pytest.mark.parametrize(
    "text, start, expected",
    [
        (" Ada", 1, ("Ada", 2)),
        (" Ada", 2, ("Ada", 2)),
        ("Ada", 0, ("Ada", 2)),
        ("1843.\n", 42, ("1843.", 42)),
        ("1843. ", 42, ("1843.", 42)),
    ],
)
def test_white_space_around_answers_is_removed(file: Path, text, start, expected) -> None:
    example = read_squad(write(file, squad((text, start))), labeled=True)[0]
    assert (example.answer_texts[0], example.answer_starts[0]) == expected
    assert CONTEXT.startswith(expected[0], expected[1])


@pytest.mark.parametrize(
    "text, start, actual",
    [
        ("Ada", 3, "da "),
        ("ada", 2, "Ada"),
        ("1843. But", 42, "1843. "),
        ("Ada", 4000, ""),
        ("Ada", -1, ""),
    ],
)
def test_wrong_offsets_of_answers_are_rejected(
    file: Path, text: str, start: int, actual: str
) -> None:
    with pytest.raises(ValueError) as error:
        read_squad(write(file, squad((text, start))), labeled=True)
    message = f"answer to question q1 is not at its offset {start}: expected {text!r}, but the "
    message += f"passage has {actual!r} there"
    assert str(error.value).startswith(str(file)) and message in str(error.value)


@pytest.mark.parametrize("text", ["", "  "])
def test_empty_answers_are_rejected(file: Path, text: str) -> None:
    message = rf"answers.0.: the answer to question q1 is empty \('{text}'\)"
    with pytest.raises(ValueError, match=message):
        read_squad(write(file, squad((text, 0))), labeled=True)


def changed(key: str, value: Any) -> dict[str, Any]:
    content = squad(("Ada", 2))
    content["data"][0]["paragraphs"][0][key] = value
    return content


@pytest.mark.parametrize(
    "content, message",
    [
        ([], "'[]' is not an object"),
        ({}, "the key 'data', which SQuAD v1.1 requires, is missing"),
        ({"data": []}, "contains no questions"),
        ({"data": {}}, "data: '{}' is not an array"),
        ({"data": [{"title": "Ada"}]}, r"data[0]: the key 'paragraphs', which SQuAD"),
        (changed("context", None), "data[0].paragraphs[0].context: 'None' is not a string"),
        (
            changed("context", "Ada \ud800"),
            "paragraphs[0].context: contains a lone surrogate at character 4",
        ),
        (changed("qas", ["?"]), "data[0].paragraphs[0].qas[0]: '?' is not an object"),
        (squad(), "question q1 has no answer"),
        (squad(answers=[{"text": "Ada"}]), "answers[0]: the key 'answer_start', which"),
        (squad(("Ada", "2")), "answers[0].answer_start: '2' is not an integer"),
        (squad(("Ada", True)), "answers[0].answer_start: 'True' is not an integer"),
        (squad(("Ada", 2), id=7), "qas[0].id: '7' is not a string"),
    ],
)
def test_malformed_content_is_rejected(file: Path, content: Any, message: str) -> None:
    with pytest.raises(ValueError) as error:
        read_squad(write(file, content), labeled=True)
    assert str(error.value).startswith(str(file)) and message in str(error.value)


def test_duplicate_ids_are_rejected(file: Path) -> None:
    content = squad(("Ada", 2))
    content["data"] *= 2
    with pytest.raises(ValueError, match=r"data\[1\].*the question ID 'q1' is repeated"):
        read_squad(write(file, content), labeled=True)


@pytest.mark.parametrize(
    "data, message",
    [(b'{"data": [', "not valid JSON"), (b"[" * 100_000, "not valid JSON"), (b"\xff{}", "UTF-8")],
)
def test_invalid_json_is_rejected(file: Path, data: bytes, message: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ValueError, match=f"squad.json: .*{message}"):
        read_squad(file, labeled=True)


def test_missing_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none.json is not a file. Specify a JSON file"):
        read_squad(tmp_path / "none.json", labeled=True)


def test_the_official_dev_set_has_the_published_size(shared_data: Path) -> None:
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labeled=True)
    assert len(examples) == 10_570  # This number is from Rajpurkar et al. 2016, table 1.
    assert len({example.title for example in examples}) == 48
    for example in examples:
        for text, start in zip(example.answer_texts, example.answer_starts, strict=True):
            assert example.context.startswith(text, start)
