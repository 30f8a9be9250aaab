"""From the scores of starts and ends in windows to answers in the passage's own characters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bert_jax.files import write_file
from bert_jax.labeled_data.squad import SpanExample, SpanWindows
from bert_jax.tokenizers.words import end_of_marks


@dataclass(frozen=True, slots=True)
class Candidate:
    """A span that may be the answer: characters `start` to `end` of the passage are its text.

    probability: softmax of start_logit + end_logit over the candidates of a question.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The candidates for a question's answer, the best first; none where the passage is empty."""

    id: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The best candidate's text, "" if there is none."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True)
class _Tokens:
    """[tokens] of all windows; window_ends: where the window of the passage ends in its row."""

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
    """The best answer to every question over all its windows, with the next best ones.

    A candidate begins and ends in one window, is at most `max_answer_length` word-pieces long, and
    begins in the window of maximum context of its first token. Of the highest start_logit +
    end_logit `n_best` different texts are kept, of equal ones the earlier and shorter; of spans
    that read the same, the best. Every such span is looked at, not only those of the highest
    starts and ends.

    Args:
      windows: as `span_windows` made them of `examples`.
      start_logits: [windows, length], length >= the longest row; only those of the passage count.
      end_logits: as `start_logits`.

    ValueError if n_best or max_answer_length is below 1, or a logit of the passage is not finite.
    Source: Devlin et al. 2019, section 4.2, and its released code.
    """
    if n_best < 1 or max_answer_length < 1:
        raise ValueError(
            f"n_best is {n_best} and max_answer_length {max_answer_length}; expected 1 or more"
        )
    tokens = _tokens(windows, start_logits, end_logits)
    firsts = np.flatnonzero(windows.has_maximum_context)
    window_of_first = np.searchsorted(windows.features.sequences.starts, firsts, side="right") - 1
    bounds = np.searchsorted(windows.examples[window_of_first], np.arange(len(examples) + 1))
    _check_finite(tokens, windows, examples)
    answers = []
    for number, example in enumerate(examples):
        mine = firsts[bounds[number] : bounds[number + 1]]
        spans = _all_spans(tokens, mine, max_answer_length)
        answers.append(Answer(example.id, _candidates(tokens, spans, example.context, n_best)))
    return answers


def _tokens(
    windows: SpanWindows, start_logits: NDArray[np.float32], end_logits: NDArray[np.float32]
) -> _Tokens:
    sequences = windows.features.sequences
    assert start_logits.shape == end_logits.shape and len(start_logits) == len(windows)
    width = start_logits.shape[1]
    assert width >= sequences.lengths.max(initial=0)
    there = np.arange(width) < sequences.lengths[:, None]
    return _Tokens(
        start_logits[there].astype(np.float64),
        end_logits[there].astype(np.float64),
        np.repeat(sequences.starts[1:] - 1, sequences.lengths),  # where the last [SEP] is
        windows.character_offsets,
    )


def _check_finite(tokens: _Tokens, windows: SpanWindows, examples: Sequence[SpanExample]) -> None:
    in_passage = tokens.offsets[:, 1] > 0
    finite = np.isfinite(tokens.start_logits) & np.isfinite(tokens.end_logits)
    bad = np.flatnonzero(in_passage & ~finite)
    if len(bad):
        window = np.searchsorted(windows.features.sequences.starts, bad[0], side="right") - 1
        raise ValueError(
            f"a logit of question {examples[windows.examples[window]].id} is "
            f"{tokens.start_logits[bad[0]]} (start) or {tokens.end_logits[bad[0]]} (end), "
            f"as are those of {len(bad) - 1} other tokens; expected finite numbers. "
            "Look whether the model's training diverged"
        )


class _Spans(NamedTuple):
    """[spans] first and last tokens, and start_logit + end_logit."""

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
    """[at most count] places of the highest, of equal ones the first."""
    if len(scores) <= count:
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    kept = np.flatnonzero(scores >= least)
    return kept[np.argsort(-scores[kept], kind="stable")[:count]]


def _candidates(tokens: _Tokens, spans: _Spans, context: str, n_best: int) -> tuple[Candidate, ...]:
    kept: dict[str, tuple[int, int, int]] = {}  # begin, end and which span
    count = n_best
    while True:
        # Where texts repeat more spans are asked for, which few questions need.
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
    """Writes {question id: text}, the JSON that SQuAD's evaluation takes."""
    _write_json({answer.id: answer.text for answer in answers}, path)


def write_squad_n_best(answers: Sequence[Answer], path: Path) -> None:
    """Writes {question id: [{text, probability, start_logit, end_logit}, ..]}, the best first.

    Source: `nbest_predictions.json` of Devlin et al.'s release.
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
