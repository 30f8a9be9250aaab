"""Scores of answers to questions, by the rules of SQuAD v1.1's evaluation."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized_answer(text: str) -> str:
    """Lower case, without ASCII punctuation and English articles, words one space apart."""
    bare = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def squad_scores(
    predictions: Mapping[str, str], references: Mapping[str, Sequence[str]]
) -> dict[str, float]:
    """Exact match and F1 of words in percent, `exact_match` and `f1`, the mean over questions.

    Both mappings are by question id. A question's score is its best over its reference answers;
    one without a prediction scores 0, and predictions for other questions do not count.
    ValueError if there are no questions, or one without a reference.
    Source: Rajpurkar et al. 2016, section 6.1.
    """
    if not references:
        raise ValueError("there are no questions to score; expected reference answers for some")
    exact_match, f1 = 0, 0.0
    for question, answers in references.items():
        if not answers:
            raise ValueError(f"question {question} has no reference answer; expected at least one")
        if question not in predictions:
            continue
        predicted = normalized_answer(predictions[question])
        expected = {normalized_answer(answer) for answer in answers}
        exact_match += predicted in expected
        # Added one by one: from Python 3.12 on sum() rounds otherwise than the official script.
        f1 += max(_f1(predicted.split(), answer.split()) for answer in expected)
    return {
        "exact_match": 100.0 * exact_match / len(references),
        "f1": 100.0 * f1 / len(references),
    }


def _f1(predicted: list[str], expected: list[str]) -> float:
    """Of two bags of words; 0 also where both are empty, as the official rules have it."""
    common = (Counter(predicted) & Counter(expected)).total()
    if not common:
        return 0.0
    precision, recall = common / len(predicted), common / len(expected)
    return 2 * precision * recall / (precision + recall)
