"""Convert start and end logits of windows to answers, which are text from the passage."""

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
    """A possible answer to a question.

    Attributes:
      text: the text of the answer, characters `start` to `end` of the passage.
      start: the offset of the first character.
      end: the offset after the last character.
      start_logit: the start logit of the first token.
      end_logit: the end logit of the last token.
      probability: the softmax of start_logit + end_logit over the question's candidates.
    """

    text: str
    start: int
    end: int
    start_logit: float
    end_logit: float
    probability: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The candidates for the answer to a question, best first; none if the passage is empty."""

    id: str
    candidates: tuple[Candidate, ...]

    @property
    def text(self) -> str:
        """The text of the best candidate, "" if there are no candidates."""
        return self.candidates[0].text if self.candidates else ""


@dataclass(frozen=True)
class _Tokens:
    """Arrays over the tokens of all windows.

    Attributes:
      start_logits: [tokens] start logits.
      end_logits: [tokens] end logits.
      window_ends: [tokens] position of the final separator of the token's row.
      offsets: [tokens, 2] offsets of the token's characters in the passage.
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
    """Return the best answers to each question over all of its windows.

    A candidate lies in a single window, has at most `max_answer_length` tokens, and starts in the
    window that gives its first token the most context. All such spans are scored by start_logit +
    end_logit, not only those with the highest starts and ends. Ties are broken in favor of earlier
    and then shorter spans. If several spans have the same text, only the best one is kept.

    The method follows Devlin et al. 2019, section 4.2, and its released code.

    Args:
      windows: the windows of `examples`, as returned by `span_windows`.
      examples: the questions.
      start_logits: [windows, length] start logits, with `length` at least the length of the longest
        row. Only logits of tokens of the passage are used.
      end_logits: [windows, length] end logits.
      n_best: the maximum number of candidates per question, all with different texts.
      max_answer_length: the maximum number of tokens of a candidate.

    Raises:
      ValueError: `n_best` or `max_answer_length` is less than 1, or a logit of the passage is not
        finite.
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
        np.repeat(sequences.starts[1:] - 1, sequences.lengths),  # the last token is a separator
        windows.character_offsets,
    )


def _check_finite(tokens: _Tokens, windows: SpanWindows, examples: Sequence[SpanExample]) -> None:
    in_passage = tokens.offsets[:, 1] > 0
    finite = np.isfinite(tokens.start_logits) & np.isfinite(tokens.end_logits)
    bad = np.flatnonzero(in_passage & ~finite)
    if len(bad):
        window = np.searchsorted(windows.features.sequences.starts, bad[0], side="right") - 1
        raise ValueError(
            f"question {examples[windows.examples[window]].id}: a token of the passage has the "
            f"logits {tokens.start_logits[bad[0]]} (start) and {tokens.end_logits[bad[0]]} (end), "
            f"and {len(bad) - 1} others have non-finite logits too; expected finite numbers. Check "
            "whether the training of the model diverged"
        )


class _Spans(NamedTuple):
    """Arrays over spans: the first and last token, and the score start_logit + end_logit."""

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
    """Return the indices of the `count` highest scores, best first; ties keep their order."""
    if len(scores) <= count:
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    kept = np.flatnonzero(scores >= least)
    return kept[np.argsort(-scores[kept], kind="stable")[:count]]


def _candidates(tokens: _Tokens, spans: _Spans, context: str, n_best: int) -> tuple[Candidate, ...]:
    kept: dict[str, tuple[int, int, int]] = {}  # begin, end and index of the span
    count = n_best
    while True:
        # Few questions need a second pass, which considers more spans if texts were repeated.
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
    """Write a JSON file {question ID: text}, the input of SQuAD's evaluation script."""
    _write_json({answer.id: answer.text for answer in answers}, path)


def write_squad_n_best(answers: Sequence[Answer], path: Path) -> None:
    """Write a JSON file {question ID: [{text, probability, start_logit, end_logit}, ...]}.

    The candidates are sorted, best first. `nbest_predictions.json` in the code released by Devlin
    et al. 2019 has the same format.
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
