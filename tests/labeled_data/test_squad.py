"""SQuAD's files: what is read of them, and what is refused in which words."""

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


def test_a_question_is_read_with_its_answers(file: Path) -> None:
    write(file, squad(("Ada Lovelace", 2), ("Lovelace", 6)))
    expected = SpanExample(
        "q1", "Who wrote it?", CONTEXT, "Ada", ("Ada Lovelace", "Lovelace"), (2, 6)
    )
    assert read_squad(file, labelled=True) == [expected]
    unlabelled = SpanExample("q1", "Who wrote it?", CONTEXT, "Ada")
    assert read_squad(file, labelled=False) == [unlabelled]


def test_a_test_set_needs_no_answers(file: Path) -> None:
    content = squad()
    del content["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    assert read_squad(write(file, content), labelled=False)[0].answer_texts == ()
    with pytest.raises(ValueError, match=r"squad.json: data\[0\].paragraphs\[0\].qas\[0\]: no key"):
        read_squad(file, labelled=True)


@pytest.mark.parametrize("suffix, pack", [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files_are_read_and_damaged_ones_named(tmp_path: Path, suffix: str, pack) -> None:
    packed = pack(json.dumps(squad(("Ada", 2))).encode())
    whole, half = tmp_path / f"whole.json{suffix}", tmp_path / f"half.json{suffix}"
    whole.write_bytes(packed)
    half.write_bytes(packed[: len(packed) // 2])
    assert read_squad(whole, labelled=True)[0].answer_texts == ("Ada",)
    with pytest.raises(ValueError, match=rf"half.json{suffix}: .* truncated or damaged"):
        read_squad(half, labelled=True)


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
def test_white_space_around_an_answer_is_set_right(file: Path, text, start, expected) -> None:
    example = read_squad(write(file, squad((text, start))), labelled=True)[0]
    assert (example.answer_texts[0], example.answer_starts[0]) == expected
    assert CONTEXT.startswith(expected[0], expected[1])


@pytest.mark.parametrize(
    "text, start, found",
    [
        ("Ada", 3, "da "),
        ("ada", 2, "Ada"),
        ("1843. But", 42, "1843. "),
        ("Ada", 4000, ""),
        ("Ada", -1, ""),
    ],
)
def test_an_answer_elsewhere_is_refused(file: Path, text: str, start: int, found: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_squad(write(file, squad((text, start))), labelled=True)
    message = str(refused.value)
    for part in (str(file), "question q1", f"offset {start}", repr(text), f"found {found!r}"):
        assert part in message


@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_answer_is_refused(file: Path, text: str) -> None:
    with pytest.raises(ValueError, match=rf"answers.0.: .* question q1 is '{text}', empty"):
        read_squad(write(file, squad((text, 0))), labelled=True)


def changed(key: str, value: Any) -> dict[str, Any]:
    content = squad(("Ada", 2))
    content["data"][0]["paragraphs"][0][key] = value
    return content


@pytest.mark.parametrize(
    "content, words",
    [
        ([], "'[]' is not an object"),
        ({}, "no key 'data'"),
        ({"data": []}, "holds no question"),
        ({"data": {}}, "data: '{}' is not an array"),
        ({"data": [{"title": "Ada"}]}, r"data[0]: no key 'paragraphs'"),
        (changed("context", None), "data[0].paragraphs[0].context: 'None' is not a string"),
        (
            changed("context", "Ada \ud800"),
            "paragraphs[0].context: a lone surrogate at character 4",
        ),
        (changed("qas", ["?"]), "data[0].paragraphs[0].qas[0]: '?' is not an object"),
        (squad(), "question q1 has no answer"),
        (squad(answers=[{"text": "Ada"}]), "answers[0]: no key 'answer_start'"),
        (squad(("Ada", "2")), "answers[0].answer_start: '2' is not an integer"),
        (squad(("Ada", True)), "answers[0].answer_start: 'True' is not an integer"),
        (squad(("Ada", 2), id=7), "qas[0].id: '7' is not a string"),
    ],
)
def test_what_is_not_squad_is_named(file: Path, content: Any, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        read_squad(write(file, content), labelled=True)
    assert str(refused.value).startswith(str(file)) and words in str(refused.value)


def test_an_id_is_used_once(file: Path) -> None:
    content = squad(("Ada", 2))
    content["data"] *= 2
    with pytest.raises(ValueError, match=r"data\[1\].*'q1' repeats"):
        read_squad(write(file, content), labelled=True)


@pytest.mark.parametrize(
    "data, words",
    [(b'{"data": [', "not valid JSON"), (b"[" * 100_000, "not valid JSON"), (b"\xff{}", "UTF-8")],
)
def test_what_is_not_json_is_named(file: Path, data: bytes, words: str) -> None:
    file.write_bytes(data)
    with pytest.raises(ValueError, match=f"squad.json: .*{words}"):
        read_squad(file, labelled=True)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        read_squad(tmp_path / "none.json", labelled=True)


def test_the_official_dev_set(shared_data: Path) -> None:
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labelled=True)
    assert len(examples) == 10_570  # Rajpurkar et al. 2016, table 1
    assert len({example.title for example in examples}) == 48
    for example in examples:
        for text, start in zip(example.answer_texts, example.answer_starts, strict=True):
            assert example.context.startswith(text, start)
