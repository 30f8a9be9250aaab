"""Find the answer to a question in a passage of any length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import jax
import numpy as np
from numpy.typing import NDArray

from bert_jax.inference.predictor import Outputs, Predictor, as_pairs, check_strings, is_integer
from bert_jax.labeled_data.answers import Answer, Candidate, best_answers
from bert_jax.labeled_data.span_windows import SpanWindows, span_windows
from bert_jax.labeled_data.squad import SpanExample
from bert_jax.models.model import Model, infer
from bert_jax.runs.work_dir import RELEASED_SPAN_DEFAULTS, InferenceDefaults
from bert_jax.tasks.task import Batch

# The minimum number of candidates to compute probabilities over, as in the code released by Devlin
# et al. 2019.
_CANDIDATES = 20


@dataclass(frozen=True)
class FoundAnswer:
    """The best answer to a question.

    Attributes:
      text: the passage's characters from `start` to `end`; "" if the passage contains no words.
      start: the offset of the answer's first character in the passage.
      end: the offset just past the answer's last character.
      probability: the answer's probability from a softmax over the 20 best candidates, or over
        `n_best` candidates if that is more.
      candidates: the `n_best` candidates, best first.
      question_truncated: whether the end of the question was cut off.
    """

    text: str
    start: int
    end: int
    probability: float
    candidates: tuple[Candidate, ...]
    question_truncated: bool


class AnswerQuestion(Predictor):
    """Finds answers in passages (Devlin et al. 2019, section 4.2).

    >>> answer = AnswerQuestion("runs/squad")                                 # doctest: +SKIP
    >>> passage = "Matt lives in Canada and Sinan lives in California"
    >>> answer("Where does Matt live?", passage).text                         # doctest: +SKIP
    'Canada'
    """

    heads = ("span",)
    purpose = "answer questions"
    made_by = "`bj.finetune`"
    fallback_defaults = RELEASED_SPAN_DEFAULTS

    @overload
    def __call__(self, question: str, context: str, n_best: int = 1) -> FoundAnswer: ...
    @overload
    def __call__(
        self, question: list[str], context: list[str], n_best: int = 1
    ) -> list[FoundAnswer]: ...
    def __call__(
        self, question: str | list[str], context: str | list[str], n_best: int = 1
    ) -> FoundAnswer | list[FoundAnswer]:
        """Answer one question about a passage, or several questions, each about its own passage.

        A passage that is too long is split into overlapping windows, all of which are searched.
        Windows, questions and answers have the same maximum lengths as in the training run or, if
        the model comes from another source, as in the code released by Devlin et al.

        Args:
          question: a question or a list of questions.
          context: the passage, or a list with one passage per question.
          n_best: how many candidates to return for each question.

        Raises:
          ValueError: the arguments are not two strings or two lists of the same length, or `n_best`
            is less than 1.
          UnusableText: a text is not a string or is not valid Unicode.
        """
        pairs = as_pairs(question, context)
        if not is_integer(n_best) or n_best < 1:
            raise ValueError(f"n_best={n_best!r}: expected a positive integer")
        check_strings(pairs)
        answers = self._answers(
            [SpanExample(str(i), *pair, title="") for i, pair in enumerate(pairs)], n_best
        )
        return answers[0] if isinstance(question, str) else answers

    def _answers(self, examples: Sequence[SpanExample], n_best: int) -> list[FoundAnswer]:
        assert self.defaults is not None and self.defaults.spans is not None
        doc_stride, query_length = window_sizes(
            self.max_length, self.defaults, self.tokenizer.specials_of_pair
        )
        windows = span_windows(
            examples,
            self.tokenizer,
            max_length=self.max_length,
            doc_stride=doc_stride,
            max_query_length=query_length,
            labeled=False,
        )
        starts, ends = self._logits(windows)
        answers = best_answers(
            windows,
            examples,
            starts,
            ends,
            n_best=max(n_best, _CANDIDATES),
            max_answer_length=self.defaults.spans.max_answer_length,
        )
        questions = self.tokenizer.encode_batch(
            [example.question for example in examples], specials_as_text=True
        )
        return [
            _result(answer, n_best, len(ids) > query_length)
            for answer, ids in zip(answers, questions, strict=True)
        ]

    def _logits(self, windows: SpanWindows) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return (start logits, end logits), each [windows, length], with zeros for padding."""
        lengths = windows.features.lengths
        shape = (len(windows), int(lengths.max(initial=0)))
        starts, ends = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        rows = self._run(_span_logits, windows.features)
        for number, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
            starts[number, :length], ends[number, :length] = row["logits"][:length].T
        return starts, ends


def window_sizes(
    max_length: int, defaults: InferenceDefaults, num_specials: int = 3
) -> tuple[int, int]:
    """Return the windows' stride and the question's maximum length, both in tokens.

    If `max_length` is at least the default, both values come from `defaults`. If it is less, the
    question takes up at most a third of a row, and windows overlap by at least half.
    """
    assert defaults.spans is not None
    doc_stride, query_length = defaults.spans.doc_stride, defaults.spans.max_query_length
    if max_length >= defaults.max_length:
        return doc_stride, query_length
    query_length = min(query_length, max(1, (max_length - num_specials) // 3))
    capacity = max_length - num_specials - query_length
    return min(doc_stride, max(1, capacity // 2)), query_length


def _result(answer: Answer, n_best: int, question_truncated: bool) -> FoundAnswer:
    if not answer.candidates:
        return FoundAnswer("", 0, 0, 0.0, (), question_truncated)
    best = answer.candidates[0]
    return FoundAnswer(
        best.text,
        best.start,
        best.end,
        best.probability,
        answer.candidates[:n_best],
        question_truncated,
    )


@jax.jit
def _span_logits(model: Model, batch: Batch) -> Outputs:
    outputs = infer(model, batch["token_ids"], batch["segment_ids"], batch["attention_mask"])
    return {"logits": outputs["logits"]}
