"""Parse the lines that `predict` reads: plain text or JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from bert_jax.inference.input_stream import MAX_BYTES, USE_EVALUATE, Format, Input
from bert_jax.json_files import parse_json
from bert_jax.labeled_data.files import LongLine, decode_line
from bert_jax.text.files import content_suffix

# Sets of field names; an object must have all the fields in one of the sets.
Fields = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Document:
    """Consecutive sentences. Each sentence is a string or a list of words."""

    sentences: list[str | list[str]]


@dataclass(frozen=True)
class InputLine:
    """A valid input line.

    Attributes:
      place: "file:line".
      value: a text, or the values of multiple fields.
      has_id: whether the line's object has an id.
      id: the id of the line's object; None if it has none.
      num_bytes: the length of the line in bytes.
    """

    place: str
    value: Any
    has_id: bool = False
    id: Any = None
    num_bytes: int = 0


class UnusableLine(ValueError):
    """An error for a line that cannot be used; the message gives its location and the reason."""

    # This is 0 because the error does not keep the line in memory.
    num_bytes = 0

    def __init__(self, place: str, reason: str, *, has_id: bool = False, id: Any = None):
        super().__init__(f"{place}: {reason}")
        self.has_id, self.id = has_id, id


def read_input(
    source: Input,
    form: Format,
    fields: Fields,
    list_fields: Collection[str] = (),
    *,
    report: bool = False,
) -> Iterator[InputLine | UnusableLine | None]:
    """Yield the parsed lines, with None whenever the next line has not arrived yet.

    In JSON Lines, blank lines are skipped. In plain text, every line is a text.

    Args:
      source: the input.
      form: the format. "auto" means JSON Lines if the file's name ends in .jsonl or the first line
        that is not blank begins with "{". Otherwise, it means plain text, and a line that
        contains a JSON object is an error.
      fields: sets of field names; an object must have all the fields in one of the sets. Other
        fields are ignored. A line of plain text counts as the field "text".
      list_fields: the fields that contain an array of strings.
      report: whether to yield an `UnusableLine` instead of raising it.

    Raises:
      ValueError: the input has a different format, for example SQuAD's.
      UnusableLine: a line is too long, not UTF-8 or not an object, or its fields are missing or
        have the wrong type.
    """
    name, lines = source.name, source.lines
    named_jsonl = content_suffix(Path(name)) == ".jsonl"
    objects = form == "jsonl" or (form == "auto" and named_jsonl)
    first_lines: list[bytes] = []
    if form == "auto" and not named_jsonl:
        first_lines += _to_first_text(lines)
        objects = bool(first_lines) and first_lines[-1].lstrip().startswith(b"{")
    number = 0
    for data in chain(first_lines, lines):
        if data is None:
            yield None
            continue
        number += 1
        place = f"{name}:{number}"
        try:
            text = _text(data, place)
            if objects and not text.strip():
                continue
            line = (
                _object(text, place, fields, list_fields)
                if objects
                else _plain(text, place, fields)
            )
        except UnusableLine as error:
            if not report:
                raise
            yield error
            continue
        if form == "auto" and not objects and _is_record(text, fields):
            raise ValueError(
                f"{place}: this line is a JSON object, but the input began as plain text. Add "
                "--format jsonl if the input is JSON Lines, or --format text if every line is a "
                "text"
            )
        yield replace(line, num_bytes=len(data))


def _to_first_text(lines: Iterator[bytes | None]) -> Iterator[bytes]:
    """Yield lines up to the first one that is not blank, waiting for it if necessary."""
    for line in lines:
        if line is None:
            continue
        yield line
        if line.strip():
            return


def _text(data: bytes, place: str) -> str:
    if isinstance(data, LongLine):
        raise UnusableLine(place, data.problem(MAX_BYTES))
    try:
        return decode_line(data).removesuffix("\n").removesuffix("\r")
    except ValueError as error:
        raise UnusableLine(place, str(error)) from None


def _is_record(text: str, fields: Fields) -> bool:
    """Return whether a line is a JSON object that has all the fields in one of the sets."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        record = parse_json(text)
    except ValueError:
        return False
    return any(set(each) <= record.keys() for each in fields)


def _plain(text: str, place: str, fields: Fields) -> InputLine:
    if ("text",) not in fields:
        raise ValueError(
            f"{place}: plain text; expected a JSON object with {_expected(fields)}. If the input "
            "is JSON Lines, add --format jsonl"
        )
    return InputLine(place, text)


def _object(text: str, place: str, fields: Fields, list_fields: Collection[str]) -> InputLine:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise UnusableLine(
            place,
            f"{text[:80]!r} is not valid JSON ({error}); expected an object on every line. If the "
            "lines are plain text, add --format text",
        ) from error
    if not isinstance(record, dict):
        reason = f"{text[:80]!r} is not a JSON object; expected {_expected(fields)}"
        raise UnusableLine(place, reason)
    _check_id(record.get("id"), place)
    identity: dict[str, Any] = {"has_id": "id" in record, "id": record.get("id")}
    names = next((each for each in fields if set(each) <= record.keys()), None)
    if names is None:
        if _is_squad(record):
            raise ValueError(
                f"{place}: a file of SQuAD articles; expected one question per line. {USE_EVALUATE}"
            )
        has = ", ".join(map(repr, list(record)[:20])) or "none"
        reason = f"the fields are {has}; expected {_expected(fields)}"
        raise UnusableLine(place, reason, **identity)
    try:
        values = tuple(_checked(record[name], name, name in list_fields) for name in names)
    except ValueError as error:
        raise UnusableLine(place, str(error), **identity) from None
    return InputLine(place, values[0] if len(values) == 1 else values, **identity)


def _is_squad(record: dict[str, Any]) -> bool:
    articles = record.get("data")
    if not isinstance(articles, list) or not articles:
        return False
    return all(isinstance(article, dict) and "paragraphs" in article for article in articles)


def _checked(value: Any, name: str, is_list: bool) -> Any:
    expected = "a string"
    if name == "sentences":
        if isinstance(value, list) and all(isinstance(x, str) or _strings(x) for x in value):
            return Document(value)
        expected = "an array of strings or of arrays of words"
    elif is_list:
        if _strings(value):
            return value
        expected = "an array of strings"
    elif isinstance(value, str):
        return value
    raise ValueError(f"field {name!r} is {json.dumps(value)[:80]}; expected {expected}")


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _check_id(identifier: Any, place: str) -> None:
    try:
        json.dumps(identifier, ensure_ascii=False, allow_nan=False).encode("utf-8")
    except UnicodeEncodeError:
        reason = "field 'id' contains a lone surrogate, which is not valid Unicode"
        raise UnusableLine(place, reason) from None
    except ValueError:
        reason = (
            "field 'id' contains NaN or an infinite number, which JSON does not allow. Use a string"
        )
        raise UnusableLine(place, reason) from None


def _expected(fields: Fields) -> str:
    return " or ".join(" and ".join(map(repr, names)) for names in fields)
