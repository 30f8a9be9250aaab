"""Split the passage of each question into windows of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.corpus.records import ranges
from bert_jax.labeled_data.features import TEXTS_PER_BATCH, Features, Sequences
from bert_jax.labeled_data.squad import SpanExample
from bert_jax.tokenizers.tokenizer import LocatedTokens, Tokenizer


@dataclass(frozen=True)
class SpanWindows:
    """Rows `[CLS] question [SEP] window [SEP]`, where the rows for a question are consecutive.

    Attributes:
      features: the rows. If labeled, they have int32 targets `start_positions` and `end_positions`,
        [windows]: the row positions of the first answer's first and last token, or 0 (the `[CLS]`)
        if the window does not contain the whole answer.
      examples: int64 [windows] index of each row's question, in ascending order.
      character_offsets: int32 [tokens, 2], aligned with `features.sequences.token_ids`: where each
        token starts and ends in the passage, in characters, or (0, 0) if it is not from the
        passage.
      has_maximum_context: bool [tokens] whether, of all windows that contain the token, this one
        gives it the most context. For each token in a passage, this is true in exactly one window.
    """

    features: Features
    examples: NDArray[np.int64]
    character_offsets: NDArray[np.int32]
    has_maximum_context: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.examples)


class _Texts(NamedTuple):
    """The concatenated tokens of multiple texts.

    Attributes:
      ids: [tokens] token IDs.
      offsets: [tokens, 2] where the token starts and ends in its text, in characters.
      starts: [texts + 1] index of the first token of each text, followed by the number of tokens.
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int32]
    starts: NDArray[np.int64]

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    def offsets_of(self, texts: NDArray[np.int64]) -> Iterator[NDArray[np.int32]]:
        return (self.offsets[self.starts[text] : self.starts[text + 1]] for text in texts)


class _Cuts(NamedTuple):
    """Where passages are cut into windows.

    Attributes:
      examples: [windows] index of the question.
      begins: [windows] position of the window's first token within the passage.
      sizes: [windows] number of tokens.
    """

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
    labeled: bool,
) -> SpanWindows:
    """Split the passage of each question into overlapping windows.

    Special tokens that appear literally in the data, such as "[SEP]", are encoded as ordinary text.

    The method follows section 4.2 of Devlin et al. 2019 and the code released with it.

    Args:
      examples: the questions.
      tokenizer: the model's tokenizer.
      max_length: the maximum number of tokens in a row, including special tokens.
      doc_stride: the number of tokens from the start of one window to the start of the next, as in
        the code released by Devlin et al. In Hugging Face Tokenizers, by contrast, `stride` is the
        number of tokens that two windows share: max_length minus the special tokens, the question
        and `doc_stride`.
      max_query_length: the maximum number of tokens in a question. Longer questions are truncated
        at the end.
      labeled: whether to return targets, which are the positions of each question's first answer.
        The positions include tokens that the answer covers only in part.

    Raises:
      ValueError: the longest question leaves room for fewer than `doc_stride` tokens in a window,
        or an example has no answer although `labeled` is true.
    """
    num_specials = tokenizer.specials_of_pair
    _check_lengths(max_length, doc_stride, max_query_length, num_specials)
    questions = _encode(tokenizer, [example.question for example in examples])
    # Encode each passage only once, since SQuAD has five questions per passage.
    numbers: dict[str, int] = {}
    passage_of = np.array(
        [numbers.setdefault(example.context, len(numbers)) for example in examples], np.int64
    )
    passages = _encode(tokenizer, list(numbers))
    query_sizes = np.minimum(questions.lengths, max_query_length)
    capacities = max_length - num_specials - query_sizes
    cuts = _cut(passages.lengths[passage_of], capacities, doc_stride)

    queries = ranges(questions.starts[cuts.examples], query_sizes[cuts.examples])
    windows = ranges(passages.starts[passage_of[cuts.examples]] + cuts.begins, cuts.sizes)
    sequences = _build_rows(
        tokenizer,
        (questions.ids[queries], query_sizes[cuts.examples]),
        (passages.ids[windows], cuts.sizes),
    )
    in_window = ranges(sequences.starts[:-1] + sequences.second_starts, cuts.sizes)
    offsets = np.zeros((len(sequences.token_ids), 2), np.int32)
    offsets[in_window] = passages.offsets[windows]
    maximum = np.zeros(len(sequences.token_ids), np.bool_)
    maximum[in_window] = _maximum_context(cuts)
    targets = {}
    if labeled:
        spans = list(map(_token_span, examples, passages.offsets_of(passage_of)))
        targets = _targets(np.array(spans).reshape(-1, 2), cuts, sequences.second_starts)
    return SpanWindows(Features(sequences, targets), cuts.examples, offsets, maximum)


def _check_lengths(
    max_length: int, doc_stride: int, max_query_length: int, num_specials: int
) -> None:
    for name, value in (("doc_stride", doc_stride), ("max_query_length", max_query_length)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    capacity = max_length - num_specials - max_query_length
    if capacity < doc_stride:
        largest = f", which means doc_stride <= {capacity} here" if capacity > 0 else ""
        raise ValueError(
            f"max_length={max_length}: leaves {capacity} tokens for the passage after a question "
            f"of max_query_length={max_query_length} tokens and {num_specials} special tokens. "
            f"Windows that start doc_stride={doc_stride} tokens apart would therefore skip tokens. "
            f"Expected max_length >= max_query_length + doc_stride + {num_specials}{largest}"
        )


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> _Texts:
    parts: list[LocatedTokens] = []
    for first in range(0, len(texts), TEXTS_PER_BATCH):
        batch = texts[first : first + TEXTS_PER_BATCH]
        parts += tokenizer.encode_with_offsets(batch, specials_as_text=True)
    starts = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part.ids) for part in parts], out=starts[1:])
    if not parts:
        return _Texts(np.empty(0, np.int32), np.empty((0, 2), np.int32), starts)
    ids, offsets = zip(*parts, strict=True)
    return _Texts(np.concatenate(ids), np.concatenate(offsets), starts)


def _cut(lengths: NDArray[np.int64], capacities: NDArray[np.int64], doc_stride: int) -> _Cuts:
    """Split passages into windows, stopping once a window reaches the end of the passage.

    Args:
      lengths: [questions] number of tokens in the passage.
      capacities: [questions] maximum number of tokens in a window.
      doc_stride: the number of tokens from the start of one window to the start of the next.
    """
    counts = 1 + -(-np.maximum(lengths - capacities, 0) // doc_stride)
    examples = np.repeat(np.arange(len(lengths)), counts)
    begins = ranges(np.zeros(len(lengths), np.int64), counts) * doc_stride
    return _Cuts(examples, begins, np.minimum(lengths[examples] - begins, capacities[examples]))


def _build_rows(
    tokenizer: Tokenizer,
    queries: tuple[NDArray[np.int32], NDArray[np.int64]],
    windows: tuple[NDArray[np.int32], NDArray[np.int64]],
) -> Sequences:
    """Build rows from questions and windows.

    Args:
      tokenizer: the model's tokenizer.
      queries: the token IDs of all rows' questions, concatenated, and each question's length.
      windows: the token IDs of all rows' windows, concatenated, and each window's length.
    """
    second_starts = queries[1] + 1 + tokenizer.separators_between
    starts = np.zeros(len(second_starts) + 1, np.int64)
    np.cumsum(second_starts + windows[1] + 1, out=starts[1:])
    token_ids = np.full(starts[-1], tokenizer.sep_id, np.int32)
    token_ids[starts[:-1]] = tokenizer.cls_id
    token_ids[ranges(starts[:-1] + 1, queries[1])] = queries[0]
    token_ids[ranges(starts[:-1] + second_starts, windows[1])] = windows[0]
    return Sequences(token_ids, starts, second_starts)


def _maximum_context(cuts: _Cuts) -> NDArray[np.bool_]:
    """Return, for each token of each window, whether that window gives it the most context.

    If multiple windows give a token the same amount of context, the first one is chosen. The
    result has the shape [tokens of all windows].
    """
    # Most passages fit in a single window (98% of SQuAD's, at 384 tokens), which leaves nothing to
    # compare.
    several = np.bincount(cuts.examples)[cuts.examples] > 1
    chosen = np.ones(int(cuts.sizes.sum()), np.bool_)
    several_windows = _Cuts(*(array[several] for array in cuts))
    chosen[np.repeat(several, cuts.sizes)] = _highest_score(several_windows)
    return chosen


def _highest_score(cuts: _Cuts) -> NDArray[np.bool_]:
    """Implement `_maximum_context` using the score from the code released by Devlin et al.

    The score is min(tokens to the left, tokens to the right) + 0.01 * (tokens in the window).
    """
    window = np.repeat(np.arange(len(cuts.sizes)), cuts.sizes)
    left = ranges(np.zeros(len(cuts.sizes), np.int64), cuts.sizes)
    score = np.minimum(left, cuts.sizes[window] - 1 - left) + 0.01 * cuts.sizes[window]
    # `token` indexes the passage tokens of all questions. Each question has its own copy of
    # its passage.
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
    """Return the first and the last passage token that overlap the first answer.

    If there are none, because the tokenizer drops all of the answer's characters, return (1, 0).
    """
    if not example.answer_texts:
        raise ValueError(
            f"question {example.id} has no answer, which training requires. Read the file with "
            "labeled=True"
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
        name: np.where(inside, second_starts + token, 0).astype(np.int32)
        for name, token in zip(names, (first, last), strict=True)
    }
