"""Questions with windows of their passages, and where in a window the answer stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.data.finetuning.encoding import TEXTS_AT_ONCE
from bert_jax.data.finetuning.features import Features, Sequences
from bert_jax.data.finetuning.spans import SpanExample
from bert_jax.data.records import ranges
from bert_jax.data.tokenizer import LocatedTokens, Tokenizer


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
