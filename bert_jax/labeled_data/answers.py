"""Convert the start and end logits of windows to answers, which are spans of the passage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import write_file
from bert_jax.labeled_data.span_windows import SpanWindows
from bert_jax.labeled_data.squad import SpanExample
from bert_jax.tokenizers.words import end_of_marks


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer to a question.

    Attributes:
      text: the text of the answer, from character `start` to `end` of the passage.
      start: the offset of the answer's first character in the passage.
      end: the offset just past the answer's last character.
      start_logit: the start logit of the answer's first token.
      end_logit: the end logit of the answer's last token.
      probability: the softmax of start_logit + end_logit over all candidates for the question.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The candidate answers to a question, best first. There are none if the passage is empty."""

    id: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The text of the best candidate, or "" if there are none."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True)
class _Tokens:
    """Per-token arrays, concatenated over all windows.

    Attributes:
      start_logits: [tokens] the start logit of each token.
      end_logits: [tokens] the end logit of each token.
      window_ends: [tokens] the position of the separator that ends the token's row.
      offsets: [tokens, 2] where the token starts and ends in the passage, in characters.
    """

    start_logits: NDArray[np.float64]
    end_logits: NDArray[np.float64]
    window_ends: NDArray[np.int64]
    offsets: NDArray[np.int32]


def best_answers(
    windows: SpanWindows,
    examples: Sequence[SpanExample],
    start_logits: NDArray[np.float32],
    end_logits: NDArray[np.float32],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> list[Answer]:
    """Find the best answers to each question across all of its windows.

    A candidate lies within a single window, has at most `max_answer_length` tokens, and starts in
    the window that gives its first token the most context. Every such span is scored by start_logit
    + end_logit, not just the spans with the highest start and end logits. Ties go to the earlier
    span, then to the shorter one. If several spans have the same text, only the best one is kept.

    The method follows section 4.2 of Devlin et al. 2019 and the code released with it.

    Args:
      windows: the windows of `examples`, as returned by `span_windows`.
      examples: the questions.
      start_logits: [windows, length] start logits, where `length` is at least the length of the
        longest row. Only the logits of passage tokens are used.
      end_logits: [windows, length] end logits.
      n_best: the maximum number of candidates per question. No two of them have the same text.
      max_answer_length: the maximum number of tokens in a candidate.

    Raises:
      ValueError: `n_best` or `max_answer_length` is less than 1, or the logit of a passage token is
        not finite.
    """
    for name, value in (("n_best", n_best), ("max_answer_length", max_answer_length)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1")
    tokens = _tokens_of_windows(windows, start_logits, end_logits)
    firsts = np.flatnonzero(windows.has_maximum_context)
    window_of_first = np.searchsorted(windows.features.sequences.starts, firsts, side="right") - 1
    bounds = np.searchsorted(windows.examples[window_of_first], np.arange(len(examples) + 1))
    _check_finite(tokens, windows, examples)
    answers = []
    for number, example in enumerate(examples):
        own_firsts = firsts[bounds[number] : bounds[number + 1]]
        spans = _all_spans(tokens, own_firsts, max_answer_length)
        answers.append(Answer(example.id, _candidates(tokens, spans, example.context, n_best)))
    return answers


def _tokens_of_windows(
    windows: SpanWindows, start_logits: NDArray[np.float32], end_logits: NDArray[np.float32]
) -> _Tokens:
    sequences = windows.features.sequences
    assert start_logits.shape == end_logits.shape and len(start_logits) == len(windows)
    width = start_logits.shape[1]
    assert width >= sequences.lengths.max(initial=0)
    is_token = np.arange(width) < sequences.lengths[:, None]
    return _Tokens(
        start_logits[is_token].astype(np.float64),
        end_logits[is_token].astype(np.float64),
        # The last token of a row is a separator.
        np.repeat(sequences.starts[1:] - 1, sequences.lengths),
        windows.character_offsets,
    )


def _check_finite(tokens: _Tokens, windows: SpanWindows, examples: Sequence[SpanExample]) -> None:
    in_passage = tokens.offsets[:, 1] > 0
    finite = np.isfinite(tokens.start_logits) & np.isfinite(tokens.end_logits)
    bad = np.flatnonzero(in_passage & ~finite)
    if len(bad):
        window = np.searchsorted(windows.features.sequences.starts, bad[0], side="right") - 1
        raise ValueError(
            f"question {examples[windows.examples[window]].id}: a passage token has the logits "
            f"{tokens.start_logits[bad[0]]} (start) and {tokens.end_logits[bad[0]]} (end), "
            f"and {len(bad) - 1} other tokens have non-finite logits too. Check whether training "
            "diverged"
        )


class _Spans(NamedTuple):
    """Per-span arrays: the first token, the last token, and the score start_logit + end_logit."""

    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]
    scores: NDArray[np.float64]


def _all_spans(tokens: _Tokens, firsts: NDArray[np.int64], max_answer_length: int) -> _Spans:
    lasts = firsts[:, None] + np.arange(max_answer_length)
    within = lasts < tokens.window_ends[firsts][:, None]
    lasts = lasts[within]
    starts = np.repeat(firsts, within.sum(axis=1))
    return _Spans(starts, lasts, tokens.start_logits[starts] + tokens.end_logits[lasts])


def _best_first(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return the indices of the `count` highest scores, best first. Ties keep their order."""
    if len(scores) <= count:
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    kept = np.flatnonzero(scores >= least)
    return kept[np.argsort(-scores[kept], kind="stable")[:count]]


def _candidates(tokens: _Tokens, spans: _Spans, context: str, n_best: int) -> tuple[Candidate, ...]:
    # Maps a span's text to its start, end and index.
    kept: dict[str, tuple[int, int, int]] = {}
    count = n_best
    while True:
        # If some spans have the same text, another pass considers more spans. This is rare.
        best = _best_first(spans.scores, count)
        begins = tokens.offsets[spans.firsts[best], 0].tolist()
        ends = [end_of_marks(context, end) for end in tokens.offsets[spans.lasts[best], 1].tolist()]
        for begin, end, span in zip(begins, ends, best.tolist(), strict=True):
            if len(kept) == n_best:
                break
            kept.setdefault(context[begin:end], (begin, end, span))
        if len(kept) == n_best or len(best) < count:
            break
        count *= 2
    chosen = [span for _, _, span in kept.values()]
    start_logits = tokens.start_logits[spans.firsts[chosen]]
    end_logits = tokens.end_logits[spans.lasts[chosen]]
    scores = spans.scores[chosen]
    weights = np.exp(scores - scores.max(initial=-np.inf))
    probabilities = (weights / weights.sum()).tolist()
    return tuple(
        Candidate(text, begin, end, float(start), float(stop), p)
        for (text, (begin, end, _)), start, stop, p in zip(
            kept.items(), start_logits, end_logits, probabilities, strict=True
        )
    )


def write_squad_predictions(answers: Sequence[Answer], path: Path) -> None:
    """Write the answers to a JSON file {question ID: text} for SQuAD's evaluation script."""
    _write_json({answer.id: answer.text for answer in answers}, path)


def write_squad_n_best(answers: Sequence[Answer], path: Path) -> None:
    """Write the best candidates for each question to a JSON file.

    It maps each question ID to a list of objects {text, probability, start_logit, end_logit}.
    Candidates are sorted from best to worst. The format is the same as that of the file
    `nbest_predictions.json` written by the code released with Devlin et al. 2019.
    """
    names = ("text", "probability", "start_logit", "end_logit")
    _write_json(
        {
            answer.id: [
                {name: getattr(candidate, name) for name in names}
                for candidate in answer.candidates
            ]
            for answer in answers
        },
        path,
    )


def _write_json(content: object, path: Path) -> None:
    write_file(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
