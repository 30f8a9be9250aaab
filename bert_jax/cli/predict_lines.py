"""The lines `predict` reads, and the file it writes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar, get_args

from bert_jax.data.finetuning.file_lines import decoded, file_bytes, find_file, stream_bytes

Format = Literal["auto", "text", "jsonl"]
FORMATS: tuple[Format, ...] = get_args(Format)
# Names of the fields of which an object must have one set.
Fields = Sequence[tuple[str, ...]]
_STANDARD_INPUT = "standard input"
Line = TypeVar("Line")


# Fields that hold several strings.
_LISTS = ("words", "choices")
# Files whose lines are rows of a table and no texts.
_TABLES = (".tsv", ".csv", ".parquet")


@dataclass(frozen=True)
class Document:
    """Sentences that follow each other: strings, or words."""

    sentences: list[str | list[str]]


@dataclass(frozen=True)
class InputLine:
    """What is asked of the model: a text, or the values of several fields; and the object's id.

    place: "file:line".
    """

    place: str
    value: Any
    has_id: bool = False
    id: Any = None


class UnusableLine(ValueError):
    """A line that asks nothing which can be answered: its place and reason, its object's id."""

    def __init__(self, place: str, reason: str, *, has_id: bool = False, id: Any = None):
        super().__init__(f"{place}: {reason}")
        self.has_id, self.id = has_id, id


def read_input(
    path: str | None, form: Format, fields: Fields, *, report: bool = False
) -> Iterator[InputLine | UnusableLine]:
    """Yields what the lines of a file, or of standard input, ask.

    Args:
      path: also packed (.gz, .xz, .zst); None for standard input.
      form: "auto" is JSON Lines for a file called so, and where the first line that is not blank
        begins with "{"; an object further on in what is then plain text is refused. Blank lines
        of JSON Lines are passed over; of plain text each is a text.
      fields: sets of fields, one of which an object must have; others are passed over. A line of
        plain text is the field "text".
      report: yield a line that asks nothing, in place of raising it.

    Raises:
      ValueError: no such file, or it is of another form.
      UnusableLine: a line is not UTF-8; or no object, without the fields or with another type in
        them.
    """
    name = _STANDARD_INPUT if path is None else path
    if path is None:
        lines = stream_bytes(sys.stdin.buffer, name)
    else:
        lines = file_bytes(find_file(path))
    begun = list(_to_first_text(lines))
    suffixes = Path(name).suffixes[-2:]  # the last may be that of a packed file
    named = ".jsonl" in suffixes
    if form == "auto" and any(suffix in _TABLES for suffix in suffixes):
        raise ValueError(
            f"{name}: its name is that of a table, whose lines are no texts. For a test file of "
            "the task: bert-jax evaluate WORKDIR --unlabelled --data FILE --predictions DIR; for a "
            "text a line: --format text"
        )
    opens = bool(begun) and begun[-1].lstrip().startswith(b"{")
    objects = form == "jsonl" or (form == "auto" and (named or opens))
    for number, data in enumerate(chain(begun, lines), start=1):
        place = f"{name}:{number}"
        try:
            text = _text(data, place)
            if objects and not text.strip():
                continue
            line = _object(text, place, fields) if objects else _plain(text, place, fields)
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
        yield line


def chunks(lines: Iterable[Line], first: int, most: int) -> Iterator[list[Line]]:
    """Yields parts of `lines`: `first` of them, so that results begin soon, then more and more."""
    iterator, size = iter(lines), first
    while part := list(islice(iterator, size)):
        yield part
        size = min(2 * size, most)


@contextmanager
def output_to(path: str | None) -> Iterator[TextIO]:
    """Yields what to write to: standard output, or a file that appears when all is written.

    Until then it is beside it as PATH.partial, and stays there if something fails.
    """
    if path is None:
        yield sys.stdout
        return
    target = Path(path)
    if target.exists() and not target.is_file():  # a device or a pipe, which is not replaced
        with open(target, "w", encoding="utf-8") as file:
            yield file
        return
    if not target.parent.is_dir():
        raise ValueError(f"{path}: there is no directory {target.parent} to write it to")
    partial = target.with_name(f"{target.name}.partial")
    with open(partial, "w", encoding="utf-8") as file:
        yield file
    os.replace(partial, target)


def _to_first_text(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Takes lines up to the first that is not blank."""
    for line in lines:
        yield line
        if line.strip():
            return


def _text(data: bytes, place: str) -> str:
    try:
        return decoded(data).removesuffix("\n").removesuffix("\r")
    except ValueError as error:
        raise UnusableLine(place, str(error)) from None


def _asks(text: str, fields: Fields) -> bool:
    """Whether a line is an object with a set of the fields."""
    if not text.lstrip().startswith("{"):
        return False
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return any(set(each) <= record.keys() for each in fields)


def _plain(text: str, place: str, fields: Fields) -> InputLine:
    if ("text",) not in fields:
        raise ValueError(
            f"{place}: plain text; expected a JSON object with {_expected(fields)}. (If it is one, "
            "say --format jsonl)"
        )
    return InputLine(place, text)


def _object(text: str, place: str, fields: Fields) -> InputLine:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnusableLine(
            place,
            f"{text[:80]!r} is not valid JSON ({error or type(error).__name__}); expected JSON "
            "Lines, an object on every line (--format text takes lines as they are)",
        ) from error
    if not isinstance(record, dict):
        reason = f"{text[:80]!r} is no JSON object; expected {_expected(fields)}"
        raise UnusableLine(place, reason)
    _check_id(record.get("id"), place)
    identity: dict[str, Any] = {"has_id": "id" in record, "id": record.get("id")}
    names = next((each for each in fields if set(each) <= record.keys()), None)
    if names is None:
        has = ", ".join(map(repr, list(record)[:20])) or "none"
        reason = f"its fields are {has}; expected {_expected(fields)}"
        raise UnusableLine(place, reason, **identity)
    try:
        values = tuple(_checked(record[name], name) for name in names)
    except ValueError as error:
        raise UnusableLine(place, str(error), **identity) from None
    return InputLine(place, values[0] if len(values) == 1 else values, **identity)


def _checked(value: Any, name: str) -> Any:
    expected = "a string"
    if name == "sentences":
        if isinstance(value, list) and all(isinstance(x, str) or _strings(x) for x in value):
            return Document(value)
        expected = "an array of strings or of arrays of words"
    elif name in _LISTS:
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
        json.dumps(identifier, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        reason = "field 'id' holds a lone surrogate, which is no Unicode text"
        raise UnusableLine(place, reason) from None


def _expected(fields: Fields) -> str:
    return " or ".join(" and ".join(map(repr, names)) for names in fields)
