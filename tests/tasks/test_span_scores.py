"""Compare answer scores with results from SQuAD's official evaluation script.

The expected numbers come from evaluate-v1.1.py (git blob 0137fbca04cf93b3dbb5744832d25723420a4861),
which is not part of this repository.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_jax.labeled_data.squad import read_squad
from bert_jax.tasks.span_scores import squad_scores

WORDS = (
    "the The THE a A an An and theory athena cat Cat, dog. U.S. £5 5% 50 1,000 o'clock rock-n-roll "
    "the-end a.b (a) “the” ‘an’ café cafe\u0301 naïve Straße STRASSE İzmir izmir ﬁne 東京 the東京 "
    "🤖 a🤖 — – - ... _the_ ' \" \u00a0 \u2009 \u3000 \u200b \t x\u00a0the\u2003y a\u0301 "
    "؟ the؟ ʼa ١٢"
).split(" ")
SEPARATORS = (" ", " ", " ", "  ", "\n", "\u00a0", "-", "", ", ")


def draw(source: random.Random, items: Sequence[str]) -> str:
    # Only random() returns the same numbers in every Python release.
    return items[int(source.random() * len(items))]


def phrase(source: random.Random) -> str:
    words = [draw(source, WORDS) for _ in range(int(source.random() * 7))]
    return "".join(word + draw(source, SEPARATORS) for word in words)


def perturbed(source: random.Random, text: str) -> str:
    match int(source.random() * 7):
        case 0:
            return text.upper()
        case 1:
            return f"the {text}."
        case 2:
            return " ".join(reversed(text.split()))
        case 3:
            return f"{text} {draw(source, WORDS)}"
        case 4:
            return text[: int(source.random() * (len(text) + 1))]
        case 5:
            return phrase(source)
    return text


def drawn(seed: int, count: int = 4000) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return (predictions, references); some predictions are missing."""
    source = random.Random(seed)
    predictions, references = {}, {}
    for number in range(count):
        answers = [phrase(source) for _ in range(1 + int(source.random() * 4))]
        references[f"q{number}"] = answers
        prediction = perturbed(source, draw(source, answers))
        if source.random() < 0.95:
            predictions[f"q{number}"] = prediction
    return predictions, references


@pytest.mark.parametrize(
    "seed, exact_match, f1",
    [(0, 58.5, 57.744999608234934), (1, 56.525, 57.96656644417677), (2, 58.45, 58.94280608280616)],
)
def test_totals_equal_the_official_script_exactly(seed, exact_match, f1) -> None:
    predictions, references = drawn(seed)
    scores = squad_scores(predictions, references)
    assert (scores["exact_match"], scores["f1"]) == (exact_match, f1)


def test_scores_of_single_questions_match_the_official_script() -> None:
    predictions, references = drawn(seed=3)
    lines = []
    for question, answers in references.items():
        scores = squad_scores(predictions, {question: answers})
        lines.append(f"{scores['exact_match']!r} {scores['f1']!r}")
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    assert digest == "cc9fc64a27ae02f3565854b842b9baa8e5da01b7530dc1ee92f801cefd2a40a3"


@pytest.mark.parametrize(
    "prediction, references, exact_match, f1",
    [
        ("the Cat.", ["cat"], 100.0, 100.0),
        ("", ["the"], 100.0, 0.0),
        ("", ["cat"], 0.0, 0.0),
        ("the a an", ["..."], 100.0, 0.0),
        ("U.S.", ["us", "United States"], 100.0, 100.0),
        ("a-b", ["ab", "b"], 100.0, 100.0),
        ("cat cat dog", ["cat dog dog"], 0.0, 66.66666666666666),
        ("“the” cat", ["the cat", "“” cat"], 0.0, 50.0),
        ("Straße", ["STRASSE", "strasse"], 0.0, 0.0),
        ("café", ["café"], 0.0, 0.0),
        ("the\xa0cat\u2009sat", ["cat sat"], 100.0, 100.0),
        ("theory", ["ory"], 0.0, 0.0),
        ("İzmir", ["izmir", "i̇zmir"], 100.0, 100.0),
        ("one two three", ["three two one"], 0.0, 100.0),
        ("5,000", ["5000"], 100.0, 100.0),
    ],
)
def test_rules(prediction: str, references: list[str], exact_match: float, f1: float) -> None:
    scores = squad_scores({"q": prediction}, {"q": references})
    assert (scores["exact_match"], scores["f1"]) == (exact_match, f1)


def test_missing_predictions_score_zero_and_extra_ones_are_ignored() -> None:
    references = {"q1": ["cat"], "q2": ["dog"], "q3": ["cow"], "q4": ["ox"]}
    scores = squad_scores({"q2": "dog", "q4": "the ox", "other": "cat"}, references)
    assert scores == {"exact_match": 50.0, "f1": 50.0}


def test_empty_references_are_refused() -> None:
    with pytest.raises(ValueError, match="no questions"):
        squad_scores({"q": "cat"}, {})
    with pytest.raises(ValueError, match="question q2 has no reference"):
        squad_scores({}, {"q1": ["cat"], "q2": []})


def test_the_official_dev_set(shared_data: Path) -> None:
    examples = read_squad(shared_data / "squad/dev-v1.1.json.xz", labeled=True)
    references = {example.id: example.answer_texts for example in examples}
    # Make mediocre predictions: an annotator's answer if it is short, or else the first few words
    # of the passage.
    predictions = {
        example.id: min(example.answer_texts, key=len)
        if len(example.answer_texts[-1]) < 12
        else " ".join(example.context.split()[:8])
        for example in examples
    }
    assert squad_scores(predictions, references) == {
        "exact_match": 43.964049195837276,
        "f1": 49.32640137105312,
    }
