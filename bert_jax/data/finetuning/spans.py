"""Questions on passages and their answers: SQuAD v1.1 files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from bert_jax.data.compression import BROKEN_ARCHIVE, open_stream
from bert_jax.data.documents import SourceCounts
from bert_jax.data.finetuning.splits import check_paths
from bert_jax.json_files import parse_json
from bert_jax.local_paths import LocalPath

_KINDS = {list: "an array", dict: "an object", str: "a string", int: "an integer"}


@dataclass(frozen=True)
class SpanFiles:
    """Files of SQuAD's JSON, also .gz, .xz or .zst; "" for none. Answers of `test` are not read."""

    train: LocalPath = ""
    validation: LocalPath = ""
    test: LocalPath = ""

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question and the passage that answers it.

    answer_texts, answer_starts: the answers, any of which is right, and the character of `context`
    at which each begins; both empty where the answers are not known.
    """

    id: str
    question: str
    context: str
    title: str
    answer_texts: tuple[str, ...] = ()
    answer_starts: tuple[int, ...] = ()


def read_squad(path: Path, *, labelled: bool) -> list[SpanExample]:
    """Reads a file of SQuAD v1.1; answers are read, and demanded, if it is `labelled`.

    An answer that stands at its offset but for white space around it is moved to its first other
    character. ValueError names file and place of what is not JSON or lacks a key, and file,
    question id, offset, expected and found text of an answer that is not at its offset.
    Source: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text".
    """
    root = _Node(_parsed(path), f"{path}: ")
    examples: list[SpanExample] = []
    seen: set[str] = set()
    for article in root.field("data", list).items():
        title = article.field("title", str).value if "title" in article.keys() else ""
        for paragraph in article.field("paragraphs", list).items():
            context = paragraph.field("context", str).value
            for question in paragraph.field("qas", list).items():
                example = _example(question, title, context, labelled)
                if example.id in seen:
                    question.fail(f"the id {example.id!r} repeats; every question needs its own")
                seen.add(example.id)
                examples.append(example)
    if not examples:
        raise ValueError(f"{path}: holds no question; expected SQuAD's data[].paragraphs[].qas[]")
    return examples


def _example(question: _Node, title: str, context: str, labelled: bool) -> SpanExample:
    identifier = question.field("id", str).value
    text = question.field("question", str).value
    if not labelled:
        return SpanExample(identifier, text, context, title)
    answers = [
        _located(answer, identifier, context) for answer in question.field("answers", list).items()
    ]
    if not answers:
        question.fail(
            f"question {identifier} has no answer; expected one or more, as in SQuAD v1.1 "
            "(v2.0's unanswerable questions are not supported)"
        )
    texts, starts = zip(*answers, strict=True)
    return SpanExample(identifier, text, context, title, texts, starts)


def _located(answer: _Node, question: str, context: str) -> tuple[str, int]:
    text, start = answer.field("text", str).value, answer.field("answer_start", int).value
    bare = text.strip()
    if not bare:
        answer.fail(
            f"the answer of question {question} is {text!r}, empty; expected characters of the "
            "passage, as in SQuAD v1.1. Fix the answer, or remove the question"
        )
    begin = start
    while 0 <= begin < len(context) and context[begin].isspace():
        begin += 1
    if start >= 0 and context.startswith(bare, begin):
        return bare, begin
    found = context[start : start + len(text)] if start >= 0 else ""
    answer.fail(
        f"the answer of question {question} is not at its offset {start}: expected {text!r}, "
        f"found {found!r}; correct answer_start (in characters, from 0) or the text"
    )


class _Node:
    """A part of a parsed file that knows where it stands."""

    def __init__(self, value: Any, place: str):
        self.value = value
        self._place = place

    def keys(self) -> list[str]:
        self._expect(dict)
        return list(self.value)

    def field(self, key: str, kind: type) -> _Node:
        if key not in self.keys():
            names = ", ".join(map(repr, self.keys()[:20])) or "none"
            self.fail(f"no key {key!r}; expected SQuAD v1.1's form; its keys are {names}")
        place = self._place if self._place.endswith(": ") else f"{self._place}."
        node = _Node(self.value[key], place + key)
        node._expect(kind)
        return node

    def items(self) -> Iterator[_Node]:
        for number, value in enumerate(self.value):
            yield _Node(value, f"{self._place}[{number}]")

    def fail(self, what: str) -> Never:
        raise ValueError(f"{self._place.removesuffix(': ')}: {what}")

    def _expect(self, kind: type) -> None:
        if type(self.value) is not kind:
            self.fail(f"{str(self.value)[:80]!r} is not {_KINDS[kind]}; expected SQuAD v1.1's form")
        if isinstance(self.value, str) and not self.value.isascii():
            try:
                self.value.encode("utf-8")
            except UnicodeEncodeError as error:
                self.fail(f"a lone surrogate at character {error.start}, which is no Unicode text")


def _parsed(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path} does not exist or is no file; give a file of SQuAD's JSON")
    try:
        with open_stream(path, SourceCounts()) as stream:
            return parse_json(stream.read().decode("utf-8-sig"))
    except BROKEN_ARCHIVE as error:
        raise ValueError(
            f"{path}: the {path.suffix} archive is truncated or damaged: {error}. "
            "Fetch or write the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}); expected SQuAD's JSON") from error
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}; expected SQuAD's JSON") from error
