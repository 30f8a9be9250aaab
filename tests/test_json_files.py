"""Test reading JSON files that were damaged by manual edits, other programs or failing disks."""

import json
from pathlib import Path

import pytest

from bert_jax.json_files import MAX_BYTES, expecting_fields, parse_json, read_json, read_json_object

HOSTILE = {
    "empty": (b"", "not valid JSON"),
    "cut short": (b'{"a": [1, 2', "not valid JSON"),
    "trailing text": (b"{} {}", "not valid JSON: Extra data"),
    "not UTF-8": (b'{"a": "\xff\xfe"}', "not UTF-8 text"),
    "deep arrays": (b"[" * 100_000, "nested too deeply"),
    "deep objects": (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "nested too deeply"),
    "deeper than the limit of the tokenizers library": (
        b'{"a":' * 150 + b"1" + b"}" * 150,
        "nested more than 100 levels deep",
    ),
    "a repeated key": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "an object contains the key 'c' twice"),
    "an integer of 5,000 digits": (b'{"a": ' + b"9" * 5_000 + b"}", "more than 4,300 digits"),
    "not a number": (b'{"a": NaN}', "NaN is not a JSON number"),
    "infinity": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "an overflowing number": (b'{"a": 1e999}', "the number 1e999 is too large"),
    "a lone surrogate": (b'{"a": "\\uD800"}', "lone surrogate"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_errors_name_hostile_files_and_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, message = HOSTILE[case]
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(ValueError) as error:
        read_json(file, "Copy it again")
    assert str(error.value).startswith(f"{file}: ") and str(error.value).endswith(". Copy it again")
    assert message in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "kind"),
    [("[]", "an array"), ("null", "null"), ('"a"', "a string"), ("1.5", "a number")],
)
def test_errors_name_an_unexpected_top_level_type(content: str, kind: str, tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(content)
    with pytest.raises(ValueError, match=f"model.json: expected a JSON object, got {kind}$"):
        read_json_object(file)


def test_huge_files_are_not_parsed(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    with file.open("wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="268 MB is too large for this kind of file"):
        read_json(file)


def test_missing_files_raise_an_os_error_with_their_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none.json"):
        read_json(tmp_path / "none.json")


def test_json_written_by_python_is_read_back_unchanged(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True, "ü🎉"], "b": {"a": {}}, "n": 10**30}
    for number, text in enumerate(
        [json.dumps(value), json.dumps(value, ensure_ascii=False), "\ufeff" + json.dumps(value)]
    ):
        file = tmp_path / f"{number}.json"
        file.write_text(text, encoding="utf-8")
        assert read_json(file) == value
    assert str(parse_json('{"score": NaN}')) == "{'score': nan}"  # pandas writes NaN in this form.


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda content: content["missing"], "damaged: missing key 'missing'"),
        (lambda content: content["a"]["b"], "damaged: a value has the wrong type"),
        (lambda content: content["a"].keys(), "damaged: a value has the wrong type"),
        (lambda content: float(content["huge"]), "damaged: a value has the wrong type"),
        (lambda content: int("x"), "damaged: invalid literal"),
    ],
)
def test_missing_and_malformed_fields_are_reported(use, message: str, tmp_path: Path) -> None:
    file = tmp_path / "scores.json"
    file.write_text(json.dumps({"a": 1, "huge": 10**400}))
    with pytest.raises(ValueError, match=f"scores.json: {message}.*. Remove it$"):
        with expecting_fields(file, "Remove it"):
            use(read_json_object(file))
