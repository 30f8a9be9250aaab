"""Compare choices with predictions from Hugging Face's model."""

from __future__ import annotations

import pytest
import torch
import transformers

from bert_jax import Choose
from bert_jax.inference.predictor import UnusableText

CONTEXTS = ["she takes the ball.", "", "a " * 50, "it rains"]
CHOICES = [["she throws", "she drinks it", "b"], ["x", ""], ["c " * 30, "d"], ["q", "w", "e", "r"]]


def test_choices_match_hugging_face(model_pair):
    model = model_pair("multiple_choice")
    choose = Choose(model.ours)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.theirs)
    hf_model = transformers.BertForMultipleChoice.from_pretrained(model.theirs)
    results = choose(CONTEXTS, CHOICES)
    for context, choices, ours in zip(CONTEXTS, CHOICES, results, strict=True):
        inputs = tokenizer(
            [context] * len(choices),
            choices,
            truncation=True,
            max_length=40,
            padding=True,
            return_tensors="pt",
        )
        with torch.no_grad():
            logits = hf_model(**{name: x[None] for name, x in inputs.items()}).logits[0]
        expected = torch.softmax(logits, dim=-1).tolist()
        assert ours.probabilities == pytest.approx(expected, abs=1e-5)
        assert ours.index == expected.index(max(expected))
        assert ours.text == choices[ours.index]
        assert ours.probability == max(ours.probabilities)
        assert ours.truncated == (len(context) > 90)
        single = choose(context, choices)
        assert single.probabilities == pytest.approx(ours.probabilities, abs=1e-6)


def test_wrong_arguments_are_refused(model_pair):
    choose = Choose(model_pair("multiple_choice").ours)
    with pytest.raises(ValueError, match="got 2 contexts and 1 lists of choices"):
        choose(["a", "b"], [["c", "d"]])
    for contexts, choices in ((None, None), (["a"], None), (["a"], "bc"), ({"a": 1}, [["b", "c"]])):
        with pytest.raises(ValueError, match="expected a context and its choices, or a list of co"):
            choose(contexts, choices)
    for wrong in ("cd", ["c"], None):
        with pytest.raises(
            UnusableText, match="^text 1 of 2: expected a list of two or more choices"
        ):
            choose(["a", "b"], [["c", "d"], wrong])
    with pytest.raises(UnusableText, match="^text 1 of 2: expected a string, got .* int$"):
        choose(["a", "b"], [["c", "d", "e"], ["f", 1]])
