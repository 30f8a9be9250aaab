"""Compare next-sentence probabilities with those from Hugging Face's model."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
import transformers

from bert_jax import NextSentence
from bert_jax.inference.predictor import UnusableText

FIRSTS = ["a great city to visit", "it rains.", "", "\u6771\u4eac", "z" * 50, "a " * 50, "b " * 30]
SECONDS = ["i was just there.", "a " * 20, "", "\x00", "q", "c " * 30, "d " * 50]


@pytest.mark.parametrize("head", ["pretraining", "next_sentence"])
def test_probabilities_match_hugging_face(model_pair, head):
    model = model_pair(head)
    follows = NextSentence(model.ours)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.theirs)
    hf_model = getattr(
        transformers,
        "BertForPreTraining" if head == "pretraining" else "BertForNextSentencePrediction",
    ).from_pretrained(model.theirs)
    results = follows(FIRSTS, SECONDS)
    for first, second, ours in zip(FIRSTS, SECONDS, results, strict=True):
        # Pass lists, since a bare empty string would count as a missing second sentence.
        pair = ([first], [second])
        inputs = tokenizer(*pair, truncation=True, max_length=40, return_tensors="pt")
        with torch.no_grad():
            output = hf_model(**inputs)
        logits = output.seq_relationship_logits if head == "pretraining" else output.logits
        expected = torch.softmax(logits, dim=-1)[0, 0].item()
        assert ours.probability == pytest.approx(expected, abs=1e-5)
        whole = len(tokenizer(*pair)["input_ids"][0])
        assert ours.truncated == (whole > 40)
        assert follows(first, second).probability == pytest.approx(ours.probability, abs=1e-6)


def test_a_model_trained_on_sentence_order_is_refused(model_pair, tmp_path):
    model = shutil.copytree(model_pair("pretraining").ours, tmp_path / "model")
    content = json.loads((model / "model.json").read_text())
    content["origin"]["sentence_pairs"] = "sentence_order"
    (model / "model.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="trained to predict whether two sentences are in order"):
        NextSentence(model)


def test_wrong_arguments_are_refused(model_pair):
    follows = NextSentence(model_pair("next_sentence").ours)
    for first, second in (("a", ["b"]), (["a"], "b"), (["a", "b"], ["c"]), (None, None), ("a", 1)):
        with pytest.raises(
            ValueError, match="expected two strings, or two lists of the same length"
        ):
            follows(first, second)
    with pytest.raises(UnusableText, match="^expected a string, got .* NoneType$"):
        follows(["a"], [None])
    with pytest.raises(
        ValueError, match="one sentence follows another. It fills masks: use `bj.Fill"
    ):
        NextSentence(model_pair("masked_lm").ours)
