"""Read questions on passages from SQuAD v1.1 files, and cut them into windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Never

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import ranges
from bert_jax.json_files import parse_json
from bert_jax.labeled_data.features import TEXTS_AT_ONCE, Features, Sequences
from bert_jax.labeled_data.files import check_paths
from bert_jax.local_paths import LocalPath
from bert_jax.text.documents import SourceCounts
from bert_jax.text.files import BROKEN_ARCHIVE, open_stream
from bert_jax.tokenizers.tokenizer import LocatedTokens, Tokenizer

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


@dataclass(frozen=True)
class SpanWindows:
    """Rows `[CLS] question [SEP] window [SEP]`; those of a question follow each other.

    features: with int32 targets `start_positions` and `end_positions` [windows] if labelled: the
    first and last token of the first answer within the row, 0 (the `[CLS]`) where the answer is not
    wholly in the window. examples: int64 [windows], the question of each, ascending.
    character_offsets: int32 [tokens, 2], as `features.sequences.token_ids`: the characters of the
    passage a token stands for, (0, 0) outside of the window. has_maximum_context: bool [tokens],
    whether this window shows the most of what is around the token; of the windows a token of the
    passage is in, one.
    """

    features: Features
    examples: NDArray[np.int64]
    character_offsets: NDArray[np.int32]
    has_maximum_context: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.examples)


class _Texts(NamedTuple):
    """Tokens of some texts end to end; `starts` [texts + 1] is where each begins, and the end."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def offsets_of(self, texts: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
        return (self.offsets[self.starts[text] : self.starts[text + 1]] for text in texts)


class _Cuts(NamedTuple):
    """[windows] the question of each, its first token of the passage, and how many it has."""

    examples: NDArray[np.int64]
    begins: NDArray[np.int64]
    sizes: NDArray[np.int64]


def span_windows(
    examples: Sequence[SpanExample],
    tokenizer: Tokenizer,
    *,
    max_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    labelled: bool,
) -> SpanWindows:
    """Cuts the passage of every question into windows that overlap.

    Args:
      max_length: the most tokens of a row, special ones included.
      doc_stride: tokens from the beginning of a window to that of the next, as in Devlin et al.'s
        release. Hugging Face calls `stride` what two windows share: the tokens of the passage in a
        full row (max_length less special tokens and question) less `doc_stride`.
      max_query_length: a question's tokens beyond these are dropped.
      labelled: whether to look up where the answers are; the first of each question is the target.
        One that begins or ends within a word-piece takes in the whole of it.

    "[SEP]" and the like spelled out in a text are read as text. ValueError if a window could not
    hold `doc_stride` tokens beside the longest question, or for an example without an answer.
    Source: Devlin et al. 2019, section 4.2, and its released code.
    """
    num_specials = tokenizer.specials_of_pair
    _check_lengths(max_length, doc_stride, max_query_length, num_specials)
    questions = _encoded(tokenizer, [example.question for example in examples])
    numbers: dict[str, int] = {}  # SQuAD asks five questions on a passage, which is encoded once
    passage_of = np.array(
        [numbers.setdefault(example.context, len(numbers)) for example in examples], np.int64
    )
    passages = _encoded(tokenizer, list(numbers))
    query_sizes = np.minimum(questions.lengths, max_query_length)
    capacities = max_length - num_specials - query_sizes
    cuts = _cut(passages.lengths[passage_of], capacities, doc_stride)

    queries = ranges(questions.starts[cuts.examples], query_sizes[cuts.examples])
    shown = ranges(passages.starts[passage_of[cuts.examples]] + cuts.begins, cuts.sizes)
    sequences = _laid_out(
        tokenizer,
        (questions.ids[queries], query_sizes[cuts.examples]),
        (passages.ids[shown], cuts.sizes),
    )
    in_window = ranges(sequences.starts[:-1] + sequences.second_starts, cuts.sizes)
    offsets = np.zeros((len(sequences.token_ids), 2), np.int32)
    offsets[in_window] = passages.offsets[shown]
    maximum = np.zeros(len(sequences.token_ids), np.bool_)
    maximum[in_window] = _maximum_context(cuts)
    targets = {}
    if labelled:
        spans = list(map(_token_span, examples, passages.offsets_of(passage_of)))
        targets = _targets(np.array(spans).reshape(-1, 2), cuts, sequences.second_starts)
    return SpanWindows(Features(sequences, targets), cuts.examples, offsets, maximum)


def _check_lengths(
    max_length: int, doc_stride: int, max_query_length: int, num_specials: int
) -> None:
    if max_query_length < 1 or doc_stride < 1:
        raise ValueError(
            f"doc_stride is {doc_stride} and max_query_length {max_query_length}; both are numbers "
            "of tokens, expected 1 or more"
        )
    room = max_length - num_specials - max_query_length
    if room < doc_stride:
        raise ValueError(
            f"max_length {max_length} leaves {room} tokens of the passage beside a question of "
            f"max_query_length {max_query_length} and {num_specials} special tokens; windows "
            f"doc_stride {doc_stride} apart would pass tokens over. Expected max_length >= "
            f"max_query_length + doc_stride + {num_specials}"
            + (f": here a doc_stride of at most {room}" if room > 0 else "")
        )


def _encoded(tokenizer: Tokenizer, texts: Sequence[str]) -> _Texts:
    parts: list[LocatedTokens] = []
    for first in range(0, len(texts), TEXTS_AT_ONCE):
        batch = texts[first : first + TEXTS_AT_ONCE]
        parts += tokenizer.encode_with_offsets(batch, specials_as_text=True)
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part.ids) for part in parts], out=starts[1:])
    if not parts:
        return _Texts(np.empty(0, np.int32), np.empty((0, 2), np.int32), starts)
    ids, offsets = zip(*parts, strict=True)
    return _Texts(np.concatenate(ids), np.concatenate(offsets), starts)


def _cut(lengths: NDArray[np.int64], capacities: NDArray[np.int64], doc_stride: int) -> _Cuts:
    """Windows of passages of these lengths; the last of a passage is the first to reach its end."""
    counts = 1 + -(-np.maximum(lengths - capacities, 0) // doc_stride)
    examples = np.repeat(np.arange(len(lengths)), counts)
    begins = ranges(np.zeros(len(lengths), np.int64), counts) * doc_stride
    return _Cuts(examples, begins, np.minimum(lengths[examples] - begins, capacities[examples]))


def _laid_out(
    tokenizer: Tokenizer,
    queries: tuple[NDArray[np.int32], NDArray[np.int64]],
    windows: tuple[NDArray[np.int32], NDArray[np.int64]],
) -> Sequences:
    """The rows of queries and windows: the ids of all, end to end, and [rows] how many each has."""
    second_starts = queries[1] + 1 + tokenizer.separators_between
    starts = np.zeros(len(second_starts) + 1, np.int64)
    np.cumsum(second_starts + windows[1] + 1, out=starts[1:])
    token_ids = np.full(starts[-1], tokenizer.sep_id, np.int32)
    token_ids[starts[:-1]] = tokenizer.cls_id
    token_ids[ranges(starts[:-1] + 1, queries[1])] = queries[0]
    token_ids[ranges(starts[:-1] + second_starts, windows[1])] = windows[0]
    return Sequences(token_ids, starts, second_starts)


def _maximum_context(cuts: _Cuts) -> NDArray[np.bool_]:
    """[tokens of all windows] whether a token scores highest here; of equal windows, the first."""
    # 98 % of SQuAD's passages are one window of 384 tokens, in which there is nothing to compare.
    several = np.bincount(cuts.examples)[cuts.examples] > 1
    chosen = np.ones(int(cuts.sizes.sum()), np.bool_)
    several_windows = _Cuts(*(array[several] for array in cuts))
    chosen[np.repeat(several, cuts.sizes)] = _highest_score(several_windows)
    return chosen


def _highest_score(cuts: _Cuts) -> NDArray[np.bool_]:
    """As `_maximum_context`, by the score of Devlin et al.'s release.

    It is min(tokens to the left, tokens to the right) + 0.01 x tokens of the window.
    """
    window = np.repeat(np.arange(len(cuts.sizes)), cuts.sizes)
    left = ranges(np.zeros(len(cuts.sizes), np.int64), cuts.sizes)
    score = np.minimum(left, cuts.sizes[window] - 1 - left) + 0.01 * cuts.sizes[window]
    # The token's place among those of all questions' passages, each passage counted per question.
    lengths = np.zeros(cuts.examples[-1] + 1 if len(cuts.examples) else 0, np.int64)
    np.maximum.at(lengths, cuts.examples, cuts.begins + cuts.sizes)
    firsts = np.cumsum(lengths) - lengths
    token = firsts[cuts.examples][window] + cuts.begins[window] + left
    best = np.zeros(int(lengths.sum()))
    np.maximum.at(best, token, score)
    highest = np.flatnonzero(score == best[token])
    _, first = np.unique(token[highest], return_index=True)
    chosen = np.zeros(len(token), np.bool_)
    chosen[highest[first]] = True
    return chosen


def _token_span(example: SpanExample, offsets: NDArray[np.int32]) -> tuple[int, int]:
    """First and last token of the passage in touch with the first answer; (1, 0) if none is.

    None is in touch with an answer of characters the tokenizer drops.
    """
    if not example.answer_texts:
        raise ValueError(
            f"question {example.id} has no answer, which training needs; read the file as labelled"
        )
    begin = example.answer_starts[0]
    end = begin + len(example.answer_texts[0])
    first = int(np.searchsorted(offsets[:, 1], begin, side="right"))
    last = int(np.searchsorted(offsets[:, 0], end, side="left")) - 1
    return (first, last) if first <= last else (1, 0)


def _targets(
    spans: NDArray[np.int64], cuts: _Cuts, second_starts: NDArray[np.int64]
) -> dict[str, NDArray[np.int32]]:
    first, last = (spans[cuts.examples, side] - cuts.begins for side in (0, 1))
    inside = (first >= 0) & (first <= last) & (last < cuts.sizes)
    names = ("start_positions", "end_positions")
    return {
        name: np.where(inside, second_starts + place, 0).astype(np.int32)
        for name, place in zip(names, (first, last), strict=True)
    }
