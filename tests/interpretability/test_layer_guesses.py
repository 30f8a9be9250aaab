"""Compare every layer's predictions with those of Hugging Face's masked-LM head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose

from bert_jax import Attention, FillMask

TEXT = "wet [MASK] in the [MASK]"
# The attribute that holds the masked-LM head in Hugging Face's model for each family.
HEADS = {"Bert": "cls", "Albert": "predictions"}


@pytest.mark.parametrize("family", HEADS)
def test_guesses_equal_the_head_of_hugging_face(import_pair, family):
    source, work_dir = import_pair(family, "masked_lm")
    attention = Attention(work_dir)
    trace = attention(TEXT)
    model = transformers.AutoModelForMaskedLM.from_pretrained(source)
    with torch.no_grad():
        ids = torch.tensor(trace.token_ids[None].astype(np.int64))
        states = torch.stack(model(ids, output_hidden_states=True).hidden_states)[:, 0]
        expected = torch.softmax(getattr(model, HEADS[family])(states), dim=-1)
    guesses = attention.guesses(TEXT, top_k=3)
    masks = np.flatnonzero(trace.token_ids == attention.tokenizer.mask_id)
    assert [mask.position for mask in guesses] == masks.tolist()
    for mask in guesses:
        values, best = expected[:, mask.position].topk(3)
        names = [[attention.tokenizer.readable(i) for i in row] for row in best.tolist()]
        assert [[guess.token for guess in layer] for layer in mask.layers] == names
        found = [[guess.probability for guess in layer] for layer in mask.layers]
        assert_allclose(found, values, rtol=1e-4)


def test_the_last_layer_guesses_like_fill_mask(import_pair):
    _, work_dir = import_pair("Bert", "masked_lm")
    filled = FillMask(work_dir)(TEXT, top_k=2).masks
    for mask, expected in zip(Attention(work_dir).guesses(TEXT, top_k=2), filled, strict=True):
        assert [guess.token for guess in mask.layers[-1]] == [guess.token for guess in expected]


def test_requests_that_make_no_sense_are_rejected(import_pair):
    attention = Attention(import_pair("Bert", "masked_lm")[1])
    assert attention.guesses("no mask here") == []
    with pytest.raises(ValueError, match=r"^top_k=0: out of range\. Use a number from 1 to"):
        attention.guesses(TEXT, top_k=0)
    classifier = Attention(import_pair("Bert", "classification")[1])
    message = "this model does not fill masks. It classifies texts: use `bj.Classify`."
    with pytest.raises(ValueError, match=message):
        classifier.guesses(TEXT)
