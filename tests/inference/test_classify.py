"""Classes of texts, as Hugging Face's pipeline gives them."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from bert_jax import Classify
from bert_jax.inference.texts import UnusableText

TEXTS = ["a fine film.", "", "bad", "a" * 200, "\u4e1c \x07", ("it rains", "so wet."), ("", "a")]
TEXTS += ["word " * 30, ("no " * 30, "yes " * 30)]
PROBLEMS = ["single_label_classification", "multi_label_classification", "regression"]


def pipeline_of(directory):
    return transformers.pipeline(
        "text-classification",
        model=transformers.BertForSequenceClassification.from_pretrained(directory),
        tokenizer=transformers.AutoTokenizer.from_pretrained(directory),
        top_k=None,
        truncation=True,
        max_length=40,
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_hugging_face_gives_the_same(both, problem):
    model = both("classification", problem_type=problem)
    classify, pipeline = Classify(model.ours), pipeline_of(model.theirs)
    for text, ours in zip(TEXTS, classify(TEXTS), strict=True):
        asked = {"text": text[0], "text_pair": text[1]} if isinstance(text, tuple) else [text]
        theirs = pipeline(asked)
        theirs = theirs[0] if isinstance(theirs[0], list) else theirs
        assert ours.scores == pytest.approx(
            {each["label"]: each["score"] for each in theirs}, abs=1e-5
        )
        if problem == "regression":
            assert ours.label is None and ours.probability is None
        else:
            assert ours.label == theirs[0]["label"]
            assert ours.probability == ours.scores[ours.label]


@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_order_is_kept_and_neighbours_do_not_matter(both, batch_size):
    classify = Classify(both("classification").ours, batch_size=batch_size)
    rng = np.random.default_rng(0)
    texts = ["abcde"[number % 5] * int(rng.integers(1, 60)) for number in range(30)]
    alone = {text: classify(text) for text in texts}
    for text, found in zip(texts, classify(texts), strict=True):
        assert found.scores == pytest.approx(alone[text].scores, abs=1e-6)
        assert found.label == alone[text].label


def test_what_is_cut_is_said(both):
    classify = Classify(both("classification").ours, max_length=16)
    found = classify(["a " * 14, "a " * 15, ("a " * 6, "b " * 7), ("a " * 6, "b " * 8)])
    assert [each.truncated for each in found] == [False, True, False, True]
    assert found[0].scores == found[1].scores


def test_what_cannot_be_classified(both):
    classify = Classify(both("classification").ours)
    assert classify([]) == []
    with pytest.raises(UnusableText, match=r"^a tuple of 3, expected \(first, second\)"):
        classify(("a", "b", "c"))
    with pytest.raises(UnusableText, match="^text 1 of 2: of type dict, expected a string"):
        classify(["a", {"text": "b"}])
    with pytest.raises(ValueError, match="'encoder'.*Classify.*'classification'.*finetune"):
        Classify(both("encoder").ours)
