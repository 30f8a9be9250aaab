"""Read questions, passages and answers from SQuAD v1.1 files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

from bert_jax.json_files import parse_json
from bert_jax.labeled_data.files import check_paths
from bert_jax.local_paths import PathOrUrl
from bert_jax.storage.locations import local_input
from bert_jax.text.archives import BROKEN_ARCHIVE, open_stream
from bert_jax.text.documents import SourceCounts

_KINDS = {list: "an array", dict: "an object", str: "a string", int: "an integer"}


@dataclass(frozen=True)
class SpanFiles:
    """The files for a question-answering task, in SQuAD's JSON format; they may be compressed.

    Attributes:
      train: the training file (.json, .json.gz, .json.xz or .json.zst), or "" if there is none.
      validation: the validation file, or "" if there is none.
      test: the test file, or "" if there is none. Its answers are not read.
    """

    train: PathOrUrl = ""
    validation: PathOrUrl = ""
    test: PathOrUrl = ""

    def __post_init__(self) -> None:
        check_paths(self.train, self.validation, self.test)


@dataclass(frozen=True, slots=True)
class SpanExample:
    """A question about a passage.

    Attributes:
      id: the ID of the question.
      question: the text of the question.
      context: the passage.
      title: the article's title, or "" if unknown.
      answer_texts: the answers, all of which are correct, or () if they are unknown.
      answer_starts: where each answer starts in `context`, in characters.
    """

    id: str
    question: str
    context: str
    title: str
    answer_texts: tuple[str, ...] = ()
    answer_starts: tuple[int, ...] = ()


def read_squad(path: str | Path, *, labeled: bool) -> list[SpanExample]:
    """Read a file in SQuAD v1.1 format.

    Whitespace around answers is removed, and their offsets are corrected accordingly.

    Source: Rajpurkar et al. 2016, "SQuAD: 100,000+ Questions for Machine Comprehension of Text".

    Args:
      path: the file.
      labeled: whether to read answers. If so, every question must have at least one.

    Raises:
      ValueError: the file is not valid JSON, lacks a key or repeats a question ID, or an answer is
        missing or not found at its offset. The message gives the location in the file.
    """
    root = _Node(_read(local_input(path)), f"{path}: ")
    examples: list[SpanExample] = []
    seen: set[str] = set()
    for article in root.field("data", list).items():
        title = article.field("title", str).value if "title" in article.keys() else ""
        for paragraph in article.field("paragraphs", list).items():
            context = paragraph.field("context", str).value
            for question in paragraph.field("qas", list).items():
                example = _example(question, title, context, labeled)
                if example.id in seen:
                    question.fail(
                        f"the question ID {example.id!r} is repeated, but IDs must be unique"
                    )
                seen.add(example.id)
                examples.append(example)
    if not examples:
        raise ValueError(
            f"{path} contains no questions. SQuAD files have them in data[].paragraphs[].qas[]"
        )
    return examples


def _example(question: _Node, title: str, context: str, labeled: bool) -> SpanExample:
    identifier = question.field("id", str).value
    text = question.field("question", str).value
    if not labeled:
        return SpanExample(identifier, text, context, title)
    answers = [
        _locate(answer, identifier, context) for answer in question.field("answers", list).items()
    ]
    if not answers:
        question.fail(
            f"question {identifier} has no answer, but SQuAD v1.1 requires at least one "
            "(unanswerable questions from v2.0 are not supported)"
        )
    texts, starts = zip(*answers, strict=True)
    return SpanExample(identifier, text, context, title, texts, starts)


def _locate(answer: _Node, question: str, context: str) -> tuple[str, int]:
    """Return an answer's text without surrounding whitespace, and its offset."""
    text, start = answer.field("text", str).value, answer.field("answer_start", int).value
    stripped = text.strip()
    if not stripped:
        answer.fail(
            f"the answer to question {question} is empty ({text!r}), but SQuAD v1.1 requires text "
            "from the passage. Fix the answer, or remove the question"
        )
    begin = start
    while 0 <= begin < len(context) and context[begin].isspace():
        begin += 1
    if start >= 0 and context.startswith(stripped, begin):
        return stripped, begin
    actual = context[start : start + len(text)] if start >= 0 else ""
    answer.fail(
        f"the answer to question {question} is not at its offset {start}: expected {text!r}, but "
        f"the passage has {actual!r} there. Correct answer_start (in characters, from 0) or the "
        "text"
    )


class _Node:
    """A value in a JSON file, with its location for error messages."""

    def __init__(self, value: Any, location: str):
        self.value = value
        self._location = location

    def keys(self) -> list[str]:
        self._expect(dict)
        return list(self.value)

    def field(self, key: str, kind: type) -> _Node:
        if key not in self.keys():
            names = ", ".join(map(repr, self.keys()[:20])) or "none"
            self.fail(
                f"the key {key!r}, which SQuAD v1.1 requires, is missing. The keys here are {names}"
            )
        location = self._location if self._location.endswith(": ") else f"{self._location}."
        node = _Node(self.value[key], location + key)
        node._expect(kind)
        return node

    def items(self) -> Iterator[_Node]:
        for number, value in enumerate(self.value):
            yield _Node(value, f"{self._location}[{number}]")

    def fail(self, problem: str) -> Never:
        raise ValueError(f"{self._location.removesuffix(': ')}: {problem}")

    def _expect(self, kind: type) -> None:
        if type(self.value) is not kind:
            self.fail(
                f"{str(self.value)[:80]!r} is not {_KINDS[kind]}, which SQuAD v1.1 requires here"
            )
        if isinstance(self.value, str) and not self.value.isascii():
            try:
                self.value.encode("utf-8")
            except UnicodeEncodeError as error:
                self.fail(
                    f"contains a lone surrogate at character {error.start}, which is not a valid "
                    "Unicode character"
                )


def _read(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"{path} is not a file. Specify a JSON file in SQuAD format")
    try:
        with open_stream(path, SourceCounts()) as stream:
            return parse_json(stream.read().decode("utf-8-sig"))
    except BROKEN_ARCHIVE as error:
        raise ValueError(
            f"{path}: the {path.suffix} archive is truncated or damaged: {error}. "
            "Download or write the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}). Specify a JSON file") from error
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error
