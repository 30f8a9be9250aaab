"""The lines `predict` reads, and the file it writes."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from bert_jax.inference.input_stream import MAX_BYTES, OF_THE_TASK, Format, Input
from bert_jax.json_files import parse_json
from bert_jax.labeled_data.files import LongLine, decode_line
from bert_jax.text.files import content_suffix

# Names of the fields of which an object must have one set.
Fields = Sequence[tuple[str, ...]]


@dataclass(frozen=True)
class Document:
    """Sentences that follow each other: strings, or words."""

    sentences: list[str | list[str]]


@dataclass(frozen=True)
class InputLine:
    """What is asked of the model: a text, or the values of several fields; and the object's id.

    place: "file:line". num_bytes: the line's length.
    """

    place: str
    value: Any
    has_id: bool = False
    id: Any = None
    num_bytes: int = 0


class UnusableLine(ValueError):
    """A line that asks nothing which can be answered: its place and reason, its object's id."""

    num_bytes = 0  # the line itself is not kept

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
    """Yields what lines ask, and None wherever the next one is not there yet.

    Args:
      form: "auto" is JSON Lines for a file called so, and where the first line that is not blank
        begins with "{"; an object further on in what is then plain text is refused. Blank lines
        of JSON Lines are passed over; of plain text each is a text.
      fields: sets of fields, one of which an object must have; others are passed over. A line of
        plain text is the field "text".
      list_fields: fields that hold an array of strings.
      report: yield a line that asks nothing, in place of raising it.

    Raises:
      ValueError: the lines are of another form, such as a file of SQuAD's.
      UnusableLine: a line is too long, not UTF-8 or not an object, or its fields are missing or
        of another type.
    """
    name, lines = source.name, source.lines
    named = content_suffix(Path(name)) == ".jsonl"
    objects = form == "jsonl" or (form == "auto" and named)
    begun: list[bytes] = []
    if form == "auto" and not named:
        begun += _to_first_text(lines)
        objects = bool(begun) and begun[-1].lstrip().startswith(b"{")
    number = 0
    for data in chain(begun, lines):
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
        if form == "auto" and not objects and _asks(text, fields):
            raise ValueError(
                f"{place}: a JSON object in what began as plain text; say --format jsonl, or "
                "--format text for lines taken as they are"
            )
        yield replace(line, num_bytes=len(data))


def _to_first_text(lines: Iterator[bytes | None]) -> Iterator[bytes]:
    """Takes lines up to the first that is not blank, however long it has to be waited for."""
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


def _asks(text: str, fields: Fields) -> bool:
    """Whether a line is an object with a set of the fields."""
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
            f"{place}: plain text; expected a JSON object with {_expected(fields)}. (If it is one, "
            "say --format jsonl)"
        )
    return InputLine(place, text)


def _object(text: str, place: str, fields: Fields, list_fields: Collection[str]) -> InputLine:
    try:
        record = parse_json(text)
    except ValueError as error:
        raise UnusableLine(
            place,
            f"{text[:80]!r} is not valid JSON ({error}); expected JSON "
            "Lines, an object on every line (--format text takes lines as they are)",
        ) from error
    if not isinstance(record, dict):
        reason = f"{text[:80]!r} is no JSON object; expected {_expected(fields)}"
        raise UnusableLine(place, reason)
    _check_id(record.get("id"), place)
    identity: dict[str, Any] = {"has_id": "id" in record, "id": record.get("id")}
    names = next((each for each in fields if set(each) <= record.keys()), None)
    if names is None:
        if _is_squad(record):
            raise ValueError(f"{place}: SQuAD's articles, and no question a line. {OF_THE_TASK}")
        has = ", ".join(map(repr, list(record)[:20])) or "none"
        reason = f"its fields are {has}; expected {_expected(fields)}"
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
        reason = "field 'id' holds a lone surrogate, which is no Unicode text"
        raise UnusableLine(place, reason) from None
    except ValueError:
        reason = (
            "field 'id' holds NaN or an infinite number, which JSON does not allow: give a string"
        )
        raise UnusableLine(place, reason) from None


def _expected(fields: Fields) -> str:
    return " or ".join(" and ".join(map(repr, names)) for names in fields)
