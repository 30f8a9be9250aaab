"""Compare answers with a slow exhaustive search over every span in every window."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from bert_jax import AnswerQuestion
from bert_jax.inference.answer_question import window_sizes
from bert_jax.inference.predictor import UnusableText
from bert_jax.runs.work_dir import RELEASED_SPAN_DEFAULTS

PASSAGE = "Matt lives in Canada and Sinan lives in California"
QUESTIONS = ["where does Matt live?", "who?", "", "x" * 40, "where does sinan live?"]
CONTEXTS = [
    PASSAGE,
    "Caf\u00e9 Cafe\u0301, \u6771\u4eac.",
    PASSAGE,
    PASSAGE * 2,
    f"{PASSAGE}. " * 3,
]


@pytest.fixture(scope="module")
def model(model_pair):
    return model_pair("span", max_position_embeddings=64)


@pytest.fixture(scope="module")
def answer(model) -> AnswerQuestion:
    return AnswerQuestion(model.ours)


def best_span(directory, question, context):
    """Try all spans of at most 30 tokens, and return (score, start, end) for the best one.

    A span counts only in one window: the one that gives its first token the most context on both
    sides. If there are several such windows, the first one counts.
    """
    length = 64
    stride, query = window_sizes(length, RELEASED_SPAN_DEFAULTS)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    hf_model = transformers.BertForQuestionAnswering.from_pretrained(directory)
    question_ids = tokenizer(question, add_special_tokens=False)["input_ids"][:query]
    passage = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = passage["input_ids"], passage["offset_mapping"]
    capacity = length - 3 - len(question_ids)
    begins = [0]
    while begins[-1] + capacity < len(ids):
        begins.append(begins[-1] + stride)
    windows = [range(begin, min(begin + capacity, len(ids))) for begin in begins]

    def context_around(token: int, window: range) -> float:
        return min(token - window.start, window.stop - 1 - token) + 0.01 * len(window)

    best = (-np.inf, 0, 0)
    for window in windows:
        window_ids = [ids[token] for token in window]
        row = [*tokenizer("")["input_ids"][:1], *question_ids, tokenizer.sep_token_id, *window_ids]
        row.append(tokenizer.sep_token_id)
        segments = [0] * (len(question_ids) + 2) + [1] * (len(window_ids) + 1)
        with torch.no_grad():
            output = hf_model(torch.tensor([row]), token_type_ids=torch.tensor([segments]))
        starts, ends = (each[0, len(question_ids) + 2 :] for each in output.values())
        for first in window:
            around = [(context_around(first, w), -w.start) for w in windows if first in w]
            if max(around) != (context_around(first, window), -window.start):
                continue
            for last in range(first, min(first + 30, window.stop)):
                score = (starts[first - window.start] + ends[last - window.start]).item()
                if score > best[0]:
                    best = (score, offsets[first][0], offsets[last][1])
    return best


def test_the_answer_is_the_best_span_of_all_windows(model, answer):
    found = answer(QUESTIONS, CONTEXTS, n_best=3)
    for question, context, ours in zip(QUESTIONS, CONTEXTS, found, strict=True):
        score, start, end = best_span(model.theirs, question, context)
        best = ours.candidates[0]
        assert (ours.start, context[ours.start : end]) == (start, context[start:end])
        # The answer may also include an accent after its last letter.
        assert ours.end - end in (0, 1)
        assert best.start_logit + best.end_logit == pytest.approx(score, abs=1e-4)
        assert ours.text == context[ours.start : ours.end] == best.text
        assert ours.probability == best.probability < 1
        assert len(ours.candidates) == 3
        assert ours.question_truncated == (len(question.replace(" ", "")) > 20)


def test_order_and_batches_do_not_matter(model, answer):
    questions = [question for question in QUESTIONS for _ in range(4)]
    contexts = [context for _ in range(4) for context in CONTEXTS]
    together = answer(questions, contexts)
    small = AnswerQuestion(model.ours, batch_size=3)(questions, contexts)
    for question, context, one, other in zip(questions, contexts, together, small, strict=True):
        single = answer(question, context)
        for found in (one, other):
            assert (found.text, found.start, found.end) == (single.text, single.start, single.end)
            assert found.probability == pytest.approx(single.probability, abs=1e-5)


def test_passages_without_words(answer):
    for context in ("", " \x00\u200b"):
        found = answer("who?", context)
        assert (found.text, found.start, found.end, found.probability) == ("", 0, 0, 0.0)
        assert found.candidates == ()
    assert answer([], []) == []


def test_windows_have_the_released_sizes_if_they_fit():
    assert (
        window_sizes(512, RELEASED_SPAN_DEFAULTS)
        == window_sizes(384, RELEASED_SPAN_DEFAULTS)
        == (128, 64)
    )
    for length in range(5, 400):
        stride, query = window_sizes(length, RELEASED_SPAN_DEFAULTS)
        assert stride >= 1 and query >= 1 and query + stride + 3 <= length


def test_max_length_defaults_to_the_released_value(model_pair):
    model = model_pair("span", max_position_embeddings=400).ours
    assert AnswerQuestion(model).max_length == 384
    assert AnswerQuestion(model, max_length=400).max_length == 400


def test_wrong_arguments_are_refused(model_pair, answer):
    for wrong in (0, 1.5, None):
        with pytest.raises(ValueError, match=f"n_best={wrong}: expected a positive integer"):
            answer("a", "b", n_best=wrong)
    with pytest.raises(ValueError, match="expected two strings, or two lists of the same length"):
        answer("a", ["b"])
    with pytest.raises(ValueError, match="lists of the same length, got a value of type NoneType"):
        answer(None, None)
    with pytest.raises(UnusableText, match="^expected a string, got .* int$"):
        answer(["a"], [3])
    with pytest.raises(
        ValueError, match="does not answer questions. It fills masks: use `bj.FillMask`"
    ):
        AnswerQuestion(model_pair("masked_lm").ours)
