"""Compare integrated gradients with the same computation in PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax import Attention, Classify

STEPS = 10
TEXT, SECOND = "wet roads", "it rains"


def integrate(model, trace, special, score, baseline):
    """Return the integrated gradients [tokens] of a score computed from a model's logits."""
    table = model.get_input_embeddings().weight.detach()
    ids = torch.tensor(trace.token_ids.astype(np.int64))
    inputs = table[ids]
    kept = torch.tensor(np.isin(trace.token_ids, special))[:, None]
    start = torch.where(kept, inputs, baseline)
    segments = torch.tensor(trace.segment_ids[None].astype(np.int64))
    total = torch.zeros_like(inputs)
    for number in range(STEPS):
        point = start + (number + 0.5) / STEPS * (inputs - start)
        point = point[None].requires_grad_()
        value = score(model(inputs_embeds=point, token_type_ids=segments).logits[0])
        total += torch.autograd.grad(value, point)[0][0]
    return ((total / STEPS) * (inputs - start)).sum(dim=-1)


def special_ids(tokenizer):
    return [tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.pad_id]


@pytest.mark.parametrize("baseline", ["mask", "zero"])
@pytest.mark.parametrize("family", ["Bert", "Albert"])
def test_attributions_of_a_label_equal_pytorch(import_pair, family, baseline):
    source, work_dir = import_pair(family, "classification")
    attention = Attention(work_dir)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source)
    labels = attention.config.labels
    tokenizer = attention.tokenizer
    embedding = model.get_input_embeddings().weight.detach()[tokenizer.mask_id]
    expected = integrate(
        model,
        attention(TEXT, SECOND),
        special_ids(tokenizer),
        lambda logits: torch.softmax(logits, dim=-1)[1],
        embedding if baseline == "mask" else torch.zeros_like(embedding),
    )
    found = attention.attribute(TEXT, SECOND, target=labels[1], steps=STEPS, baseline=baseline)
    assert found.target == labels[1]
    assert_allclose(found.scores, expected, atol=1e-5)
    assert abs(expected).max() > 1e-3
    scores = Classify(work_dir)((TEXT, SECOND)).scores
    assert_allclose(found.score, scores[labels[1]], rtol=1e-4)


def test_attributions_of_a_guess_equal_pytorch(import_pair):
    source, work_dir = import_pair("Bert", "masked_lm")
    attention = Attention(work_dir)
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    trace = attention("wet [MASK] rain")
    position = trace.tokens.index("[MASK]")
    best = attention.guesses("wet [MASK] rain", top_k=1)[0].layers[-1][0]
    expected = integrate(
        model,
        trace,
        special_ids(attention.tokenizer),
        lambda logits: torch.softmax(logits[position], -1)[trace_id(attention, best.token)],
        model.get_input_embeddings().weight.detach()[attention.tokenizer.mask_id],
    )
    found = attention.attribute("wet [MASK] rain", steps=STEPS)
    assert found.target == best.token
    assert_allclose(found.score, best.probability, rtol=1e-4)
    assert_allclose(found.scores, expected, atol=1e-5)


def trace_id(attention, token):
    return attention.tokenizer.token_to_id(token)


def test_attributions_sum_to_the_change_of_the_score(import_pair):
    attention = Attention(import_pair("Bert", "classification")[1])
    coarse, fine = (attention.attribute(TEXT, steps=steps) for steps in (4, 256))
    assert fine.error < 1e-3
    difference = fine.score - fine.baseline_score
    assert_allclose(fine.scores.sum(), difference, atol=fine.error + 1e-6)
    assert_allclose(coarse.scores.sum(), difference, atol=coarse.error + 1e-6)
    assert_allclose(fine.word_scores.sum(), fine.scores.sum(), rtol=1e-5)
    assert len(fine.word_scores) == len(fine.words)
    # The baseline keeps [CLS] and [SEP], so these tokens contribute nothing.
    assert fine.scores[0] == fine.scores[-1] == 0


def test_requests_that_make_no_sense_are_rejected(import_pair):
    classifier = Attention(import_pair("Bert", "classification")[1])
    with pytest.raises(ValueError, match="^target='good': expected one of 'no', 'maybe', 'yes'"):
        classifier.attribute(TEXT, target="good")
    with pytest.raises(ValueError, match="^steps=0: out of range"):
        classifier.attribute(TEXT, steps=0)
    with pytest.raises(ValueError, match="^baseline='pad': expected one of 'mask', 'zero'"):
        classifier.attribute(TEXT, baseline="pad")
    masked = Attention(import_pair("Bert", "masked_lm")[1])
    with pytest.raises(ValueError, match=r"^'wet roads': contains no \[MASK\]\. Put one"):
        masked.attribute(TEXT)
    with pytest.raises(ValueError, match="^target='weather': not in the vocabulary"):
        masked.attribute("wet [MASK]", target="weather")
    span = Attention(import_pair("Bert", "span")[1])
    message = "this model answers questions; it does not predict a single score that could"
    with pytest.raises(ValueError, match=message):
        span.attribute(TEXT, SECOND)
